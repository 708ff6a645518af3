"""FedDyn: local objectives that are corrected so that their minima agree with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization", Algorithm 1. Learnt: a network w.

A round:
  1. The server sends w_t to the participants.
  2. Client i trains w_i from w_t on f_i(w) - <h_i, w> + (a / 2) ||w - w_t||^2.
  3. It sets h_i <- h_i - a (w_i - w_t), and uploads w_i - w_t.
  4. The server sets H <- H - a sum_i (w_i - w_t) over the participants, and
     w <- w_t + mean_i (w_i - w_t) - H / (I a), a plain mean.

Served: the newest w of Algorithm 1's server update, to all clients, or fine-tuned as in FedAvg. The
server keeps w and H, the sum of all h_i, which lets clients join, and client i keeps h_i. The
server does not know, and cannot subtract, the h_i of clients that leave.

  paper    here                    shape
  w        ServerState.weights     body and classifier
  h        ServerState.drift / I   the same
  h_i      ClientState.drift       the same
  a        dynamic_weight
  I        round_.num_clients

Differences from the paper: steps on mini-batches instead of a minimum.
"""

import dataclasses
from typing import NamedTuple

from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Weights
from tf_pflego.core.local_training import MiniBatches, ServesOneNetwork, near
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedDynConfig(MiniBatches, ServesOneNetwork):
    """Hyper-parameters of FedDyn."""

    dynamic_weight: float = settings.setting(
        0.01, "a, weight of the squared distance to the server's weights in FedDyn", above=0
    )


class ServerState(NamedTuple):
    """The state that the server keeps."""

    weights: Weights  # w
    drift: Weights  # H


class ClientState(NamedTuple):
    """The state that client i keeps."""

    drift: Weights  # h_i


def build_feddyn(model: SplitModel, config: FedDynConfig) -> Algorithm:
    """Returns FedDyn for `model`."""
    model = model.with_shared_classifier()
    a = config.dynamic_weight

    def init_server(federation):
        weights = model.initial_weights()
        return ServerState(weights, nests.zeros_like(weights))

    def client_update(sent, state, client, round_):
        def loss(weights, batch):
            return model.loss(weights, batch) - nests.inner_product(state.drift, weights)

        weights = config.minimize(near(loss, sent, a), sent, client)
        moved = nests.subtract(weights, sent)
        drift = nests.subtract(state.drift, nests.scale(a, moved))
        share = nests.scale(round_.equal_weight, moved)
        return ClientResult(weights, ClientState(drift), summed=share)

    def server_update(server, uploads, round_):
        moved = nests.scale(1 / round_.equal_weight, uploads.summed)
        drift = nests.subtract(server.drift, nests.scale(a, moved))
        mean = nests.add(server.weights, nests.scale(1 / uploads.count, moved))
        return ServerState(nests.subtract(mean, nests.scale(round_.equal_weight / a, drift)), drift)

    return Algorithm.with_one_exchange(
        "feddyn",
        model,
        init_server=init_server,
        init_client=lambda server, seed, classes: ClientState(nests.zeros_like(server.weights)),
        broadcast=lambda server, round_: server.weights,
        client_update=client_update,
        server_update=server_update,
        served={"generic": config.served(model)},
    )
