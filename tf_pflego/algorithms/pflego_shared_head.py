"""PFLEGO with a shared head: each client follows the head of all by a gate, and corrects it.

An extension of PFLEGO (see `pflego`) that is not in its paper. PFLEGO's heads learn only from the
examples of their own client, which is not enough for a client with many classes. Here all clients
also share a head V with a row for each class of the dataset. The head of client i is W_i = g_i S_i
V + U_i, where S_i selects the rows of its classes, the gate g_i in [0, 1] decides how far it
follows them, and the correction U_i is its own. Learnt: theta, V, U_i and g_i, by a step in round t
on F_t(theta, V, U, g) = sum_i alpha_i [l_i(W_i, theta) + (lambda_i/2) |U_i|^2].

A round:
  1. The server sends theta and V to the participants.
  2. Client i computes its features phi_i = phi(X_i; theta) and the logits of S_i V once. A lower
     loss with these leaves less to correct, and raises its penalty of the correction: lambda_i =
     lambda max(1, l_i(0) / l_i(S_i V))^p. It is lambda without classes or with several exchanges.
  3. It takes tau - 1 steps only on U_i and g_i, with the rate beta_i = min(beta, 2 / (A_i + 2
     lambda)), where A_i is the mean of |(phi, 1)|^2 (half of it for several labels, twice it for
     quantities). Each follows the gradient of l_i, then divides U_i by 1 + beta_i lambda_i and
     keeps g_i in [0, 1]. The client's part of F_t does not rise (see `models.heads.corrected`).
  4. At these U_i and g_i it computes the joint gradient of l_i in theta, V and U_i, and takes one
     more step only on U_i.
  5. It uploads alpha_i times the gradients in theta and V, after one pass forward and one backward.
  6. The server gives (I/r) times the sums over the participants to one optimiser of rate rho, by
     default Muon, and takes a share d of theta and V from them (decoupled weight decay).

The U_i, g_i and lambda_i of step 4 depend only on client i. The expectation of the server's sum is
therefore the gradient of F_t in theta and V at these: docs/method_note.md has the proof.

Served: the newest theta under g_i S_i V + U_i with the newest V and the client's last g_i and U_i.
The server keeps theta, V and the optimiser's state, and client i keeps U_i, g_i and its classes.

  symbol   here                        shape
  theta    Weights.theta               list of the body's weights
  V        Weights.head                [C, M + 1], bias last; first Uniform[0, 1), 0 without classes
  U_i      ClientState.correction      [K, M + 1]; 0 at first
  g_i      ClientState.gate            []; 1 at first
  S_i      ClientState.classes         [K], the row of V for each row of the client's head
  tau      local_steps
  beta     client_learning_rate
  lambda   correction_penalty
  p        penalty_growth              0 leaves lambda_i = lambda
  rho      server_learning_rate        times what server_schedule gives for the round
  d        server_weight_decay         likewise
  alpha_i  client.client_weight        []
  I/r      round_.participation_scale  []

Clients upload the gradient of all C rows of V, with 0 for classes that they do not predict. The
server gets only the sum, since a single client's gradient would show its classes (docs/methods.md).
`gate`, `correction` and `rate_cap` are for comparisons. Without a `rate_cap`, F_t can rise.

Differences from the paper, which is PFLEGO's: W_i is made of V, U_i and g_i, and U_i is penalised.
The last step on U_i has the rate of the earlier steps, where PFLEGO's has rho I/r. beta is limited
by the curvature, and there is no other solver. By default the server has Muon and weight decay.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tf_pflego.algorithms.fedavg import SharedState
from tf_pflego.core import nests, optimizers, seeds, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult, Served, Weights
from tf_pflego.core.exchanges import Exchanges
from tf_pflego.core.tasks import CLASSIFICATION, MULTI_LABEL, REGRESSION
from tf_pflego.models.heads.corrected import CAPS, CorrectedHead, corrected
from tf_pflego.models.personalization import HeadRule
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class PflegoSharedHeadConfig(Exchanges, optimizers.ServerSettings):
    """Hyper-parameters of PFLEGO with a shared head."""

    local_steps: int = settings.local_steps()
    client_learning_rate: float = settings.client_learning_rate(0.01)
    correction_penalty: float = settings.setting(
        0.01, "lambda, weight of the squared norm of a client's correction", at_least=0
    )
    penalty_growth: float = settings.setting(
        2.0,
        "p, exponent of the growth of lambda with V's knowledge, in rounds with a single exchange",
        at_least=0,
        read_with=({"correction": ("learnt",)}, {"exchanges_per_round": (1,)}),
        off=0.0,
    )
    gate: str = settings.setting(
        "learnt",
        "how far a client follows the shared head: as it learns (learnt) or fully (open)",
        choices=("learnt", "open"),
    )
    correction: str = settings.setting(
        "learnt",
        "whether each client learns a correction of the shared head (learnt) or has none (none)",
        choices=("learnt", "none"),
    )
    rate_cap: str = settings.setting(
        "correction", "the curvature that limits beta: joint is with the gate's", choices=CAPS
    )
    server_optimizer: str = optimizers.server_optimizer("muon")
    server_learning_rate: float = optimizers.server_learning_rate(0.004)
    server_weight_decay: float = optimizers.server_weight_decay(0.01)
    server_schedule: str = optimizers.server_schedule("last_fifth")


class ClientState(NamedTuple):
    """The state that client i keeps."""

    correction: tf.Tensor  # [K, M + 1] float32, U_i
    gate: tf.Tensor  # [] float32, g_i
    classes: tf.Tensor  # [K] int32, the global class of each row; -1 if the client does not have it


def build_pflego_shared_head(model: SplitModel, config: PflegoSharedHeadConfig) -> Algorithm:
    """Returns PFLEGO with a shared head for `model`."""
    model.refuse_other_tasks(
        "pflego_shared_head",
        (CLASSIFICATION, MULTI_LABEL, REGRESSION),
        "The rates of its steps follow from a bound of the loss' curvature.",
    )
    optimizer = config.server()
    # A head that was fitted to the client a moment ago does not say what others know.
    growth = config.penalty_growth if config.exchanges_per_round == 1 else 0.0
    num_global_classes, width = model.num_global_classes, model.num_features + 1

    def init_server(federation):
        drawn = seeds.generator(model.seed, "shared_head").random((num_global_classes, width))
        drawn *= model.task.has_classes  # Else it starts from 0, as all heads do.
        weights = Weights(model.initial_weights().theta, tf.constant(drawn, tf.float32))
        return SharedState(weights, optimizer.init(weights))

    def init_client(server, seed, classes):
        return ClientState(tf.zeros([model.num_classes, width]), tf.ones([]), classes)

    def broadcast(server, round_):
        return server.weights

    def client_update(shared, state, client, round_):
        features, pull_back = model.features_and_pull_back(shared.theta, client)
        loss = model.head_objective(features, client)
        objective = CorrectedHead(
            loss,
            shared.head,
            client.classes,
            config.correction_penalty,
            growth,
            learns_correction=config.correction == "learnt",
            learns_gate=config.gate == "learnt",
        )
        rate = objective.rate(config.client_learning_rate, config.rate_cap)
        steps = config.local_steps - 1
        correction, gate = objective.descend(state.correction, state.gate, steps, rate)
        head = objective.head(correction, gate)
        g_head, g_features = loss.gradients(head, client.client_weight)
        g_shared = objective.shared_gradient(client.client_weight * gate * g_head)
        correction = objective.correction_after(correction, g_head, rate)
        return ClientResult(
            Weights(shared.theta, objective.head(correction, gate)),
            ClientState(correction, gate, client.classes),
            summed=Weights(pull_back(g_features), g_shared),
        )

    def server_update(server, uploads, round_):
        gradient = nests.scale(round_.participation_scale, uploads.summed)
        return SharedState(*optimizer.apply(gradient, server.optimizer, server.weights, round_))

    def personal_model(server, client):
        shared = server.weights
        head = corrected(shared.head, client.classes, client.correction, client.gate)
        return Weights(shared.theta, head)

    def with_head(server, client, head):
        change = head - personal_model(server, client).head
        return client._replace(correction=client.correction + change)

    served = Served(personal_model, model.predict, None, HeadRule(model), with_head)
    algorithm = Algorithm.with_one_exchange(
        "pflego_shared_head",
        model,
        init_server=init_server,
        init_client=init_client,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        served={"personalized": served},
        uses_global_classes=True,
    )
    return config.of_each_round(algorithm)
