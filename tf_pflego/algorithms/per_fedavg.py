"""Per-FedAvg: a shared model that one step turns into a good personal model.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", Algorithm 1. Learnt: one network w for all, to minimise
sum_i f_i(w - a grad f_i(w)).

A round:
  1. The server sends w to the participants. Client i sets w_i = w.
  2. For each mini-batch, of two halves: w' = w_i - a grad f_i(w_i) on the first half, and w_i <-
     w_i - b (I - a H) grad f_i(w') with grad f_i(w') on the second half. H, the Hessian at w_i, is
     omitted (first order, `meta_gradient` fo), or its product with g = grad f_i(w') is (grad
     f_i(w_i + d g) - grad f_i(w_i - d g)) / (2 d) (Hessian-free, hf).
  3. It uploads w_i - w, and the server moves w by the N_i-weighted mean, as in FedAvg.

Served: the newest w after one step of rate b on one mini-batch of the client's training examples,
and after any `fine_tuning_steps`, as in FedAvg. The server keeps w, and a client keeps nothing.

  paper    here                    shape
  w        SharedState.weights     body and classifier
  a        inner_learning_rate
  b        client_learning_rate
  d        _DIFFERENCE

Differences from the paper: a batch of `batch_size` examples has both halves, and a batch of one
example is both halves. Products of the Hessian are computed on the second half. The step for
serving has rate b, as in the program of PGFed's authors (b1d70f7). The paper's objective has a.
"""

import dataclasses

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import (
    MiniBatchSgd,
    ServesOneNetwork,
    first_batch,
    gradient,
    halves,
)
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel

_DIFFERENCE = 1e-3


@dataclasses.dataclass(frozen=True)
class PerFedAvgConfig(AveragingServer, MiniBatchSgd, ServesOneNetwork):
    """Hyper-parameters of Per-FedAvg."""

    inner_learning_rate: float = settings.setting(
        0.01, "a, learning rate of the inner step of Per-FedAvg", at_least=0
    )
    meta_gradient: str = settings.setting(
        "fo", "Per-FedAvg's gradient: first order, or Hessian-free", choices=("fo", "hf")
    )


def build_per_fedavg(model: SplitModel, config: PerFedAvgConfig) -> Algorithm:
    """Returns Per-FedAvg for `model`."""
    model = model.with_shared_classifier()
    a = config.inner_learning_rate

    def meta_gradient(weights, first, second):
        inner = nests.subtract(weights, nests.scale(a, gradient(model.loss, weights, first)))
        g = gradient(model.loss, inner, second)
        if config.meta_gradient == "fo":
            return g
        ahead = gradient(model.loss, nests.add(weights, nests.scale(_DIFFERENCE, g)), second)
        behind = gradient(model.loss, nests.subtract(weights, nests.scale(_DIFFERENCE, g)), second)
        product = nests.scale(1 / (2 * _DIFFERENCE), nests.subtract(ahead, behind))
        return nests.subtract(g, nests.scale(a, product))

    def client_update(sent, state, client, round_):
        optimizer = config.optimizer(client)

        def step(carry, batch):
            weights, memory = carry
            return optimizer.apply(meta_gradient(weights, *halves(batch)), memory, weights)

        carry = sent, optimizer.init(sent)
        weights, _ = config.over_batches(step, carry, client)
        return ClientResult(weights, averaged=nests.subtract(weights, sent))

    def one_step(weights, client):
        g = gradient(model.loss, weights, first_batch(client, config.batch_size))
        return nests.subtract(weights, nests.scale(config.client_learning_rate, g))

    served = {"personalized": config.served(model, first=one_step)}
    return average("per_fedavg", model, config, client_update, served=served)
