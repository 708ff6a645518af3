"""PGFedMo: PGFed whose clients remember what they were told of the others' risks.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", section 4.4. It is PGFed, except that in step 2 client i first mixes the g~ that it kept
from its last round into the one that it is sent, g~ <- (1 - b) g~ + b g~_i, uses the result and
keeps it. With b = 0 it is PGFed.

Beside theta_i, client i keeps g~_i: `ClientState.risk_gradient`, 0 at first. b is `risk_momentum`.
Everything else is in `pgfed`.

Differences from the paper: those of `pgfed`.
"""

import dataclasses

from tf_pflego.algorithms.pgfed import PGFedConfig, pgfed
from tf_pflego.core import settings
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class PGFedMoConfig(PGFedConfig):
    """Hyper-parameters of PGFedMo."""

    risk_momentum: float = settings.setting(
        0.5, "b, share of the kept risk gradient in the new one of PGFedMo; in [0, 1)", at_least=0
    )

    def __post_init__(self):
        super().__post_init__()
        if self.risk_momentum >= 1:
            raise ValueError(
                f"`risk_momentum` must be below 1; got {self.risk_momentum}. Lower --risk_momentum."
            )


def build_pgfedmo(model: SplitModel, config: PGFedMoConfig) -> Algorithm:
    """Returns PGFedMo for `model`."""
    return pgfed("pgfedmo", model, config, kept_share=config.risk_momentum)
