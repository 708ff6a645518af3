"""PGFedMo: PGFed with clients that remember the gradients of the other clients' risks.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", section 4.4. It is PGFed, except that in step 2 client i first mixes the g~ of its last
round into the received g~, g~ <- (1 - b) g~ + b g~_i, uses the result and keeps it. With b = 0 it
is PGFed.

Served: theta_i, as in `pgfed` (Algorithm 1, lines 19 and 22). Client i also keeps g~_i:
`ClientState.risk_gradient`, 0 at first. b is `risk_momentum`. Everything else is in `pgfed`.

Differences from the paper: as for `pgfed`. PGFed's program (b1d70f7) keeps the first g~_i whole.
Here it is mixed with 0 and therefore has a share of 1 - b.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.algorithms.pgfed import PGFedConfig, build_pgfed
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, Weights
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class PGFedMoConfig(PGFedConfig):
    """Hyper-parameters of PGFedMo."""

    risk_momentum: float = settings.setting(
        0.5,
        "b, share of the kept risk gradient in PGFedMo's new gradient, in [0, 1)",
        at_least=0,
        below=1,
    )


class ClientState(NamedTuple):
    """The state that client i keeps."""

    weights: Weights  # theta_i
    risk_gradient: Weights  # g~_i


def build_pgfedmo(model: SplitModel, config: PGFedMoConfig) -> Algorithm:
    """Returns PGFedMo for `model`."""
    pgfed = build_pgfed(model, config)
    (of_pgfed,) = pgfed.exchanges

    def client_update(message, state, client, round_):
        others, a = client.message
        mixed = nests.mix(config.risk_momentum, state.risk_gradient, others)
        client = client._replace(message=(mixed, a))
        result = of_pgfed.client_update(message, state, client, round_)
        return result._replace(state=ClientState(result.state.weights, mixed))

    def init_client(server, seed, classes):
        return ClientState(server.weights, nests.zeros_like(server.weights))

    exchanges = (dataclasses.replace(of_pgfed, client_update=client_update),)
    return dataclasses.replace(pgfed, name="pgfedmo", init_client=init_client, exchanges=exchanges)
