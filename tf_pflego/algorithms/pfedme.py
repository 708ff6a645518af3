"""pFedMe: personal models as the minima of Moreau envelopes around a shared one.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", Algorithm 1. Learnt:
one network w for all, and a network theta_i per client near it.

A round:
  1. The server sends w to the participants. Client i sets w_i = theta_i = w.
  2. For each mini-batch it takes K steps of rate eta_p, with momentum m, on theta_i -> f_i(theta_i)
     + (lambda / 2) ||theta_i - w_i||^2, and then w_i <- w_i - lambda eta (w_i - theta_i).
  3. It uploads w_i - w, and keeps theta_i.
  4. The server sets w <- w + b mean_i (w_i - w), a plain mean.

Served: theta_i of the client's last step 2 (in Algorithm 1). The server keeps w, and client i
theta_i.

  paper     here                          shape
  w         SharedState.weights           body and classifier
  theta_i   PersonalState.weights         the same
  K         personal_steps
  eta_p     personal_learning_rate
  eta       client_learning_rate
  m         momentum
  lambda    envelope_weight
  b         server_mixing

Differences from the paper: the inner problem is solved by K steps from the last batch's theta_i,
with a weight decay, as in the authors' and PGFed's programs. They have no momentum, which is the
default. In the paper and the authors' program (caf24b1) all clients train in each round, and the
server averages a sample. Here only the sample trains, and an absentee's theta_i is older. A client
without training is served the newest w, and in PGFed's program the first w.
"""

import dataclasses

from tf_pflego.algorithms.fedavg import SharedState
from tf_pflego.algorithms.local import PersonalState
from tf_pflego.core import nests, optimizers, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import MiniBatchSgd, gradient, near
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class PFedMeConfig(MiniBatchSgd):
    """Hyper-parameters of pFedMe."""

    personal_steps: int = settings.setting(
        5, "K, steps on the personal model for each batch of pFedMe", at_least=1
    )
    personal_learning_rate: float = settings.setting(
        0.01, "eta_p, learning rate of the personal model's steps in pFedMe", above=0
    )
    envelope_weight: float = settings.setting(
        15.0, "lambda, weight of the squared distance to the shared model in pFedMe", above=0
    )
    server_mixing: float = settings.setting(
        1.0,
        "b, share of the way to the participants' mean that pFedMe's shared model moves",
        above=0,
    )
    client_weight_decay: float = settings.client_weight_decay(0.001)


def build_pfedme(model: SplitModel, config: PFedMeConfig) -> Algorithm:
    """Returns pFedMe for `model`."""
    model = model.with_shared_classifier()
    envelope = config.envelope_weight

    def client_update(sent, state, client, round_):
        rate = config.rate(client, config.personal_learning_rate)
        optimizer = optimizers.sgd(rate, config.momentum, config.client_weight_decay)

        def step(carry, batch):
            w, theta, memory = carry
            objective = near(model.loss, w, envelope)
            for _ in range(config.personal_steps):
                theta, memory = optimizer.apply(gradient(objective, theta, batch), memory, theta)
            w = nests.mix(1 - envelope * config.rate(client), w, theta)
            return w, theta, memory

        w, theta, _ = config.over_batches(step, (sent, sent, optimizer.init(sent)), client)
        share = nests.scale(round_.equal_weight, nests.subtract(w, sent))
        return ClientResult(theta, PersonalState(theta), summed=share)

    def server_update(server, uploads, round_):
        share = config.server_mixing / (round_.equal_weight * uploads.count)
        return SharedState(nests.add(server.weights, nests.scale(share, uploads.summed)))

    return Algorithm.with_one_exchange(
        "pfedme",
        model,
        init_server=lambda federation: SharedState(model.initial_weights()),
        init_client=lambda server, seed, classes: PersonalState(server.weights),
        broadcast=lambda server, round_: server.weights,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": lambda server, client: client.weights},
    )
