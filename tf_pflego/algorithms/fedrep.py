"""FedRep: each client trains its head first, then the body.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", in the
full-batch form that the PFLEGO paper compares with. Learnt: one feature extractor theta for all
clients and a linear head W_i for each client.

A round:
  1. The server sends theta to the participants.
  2. Client i takes tau - e full-batch gradient steps with momentum m and rate beta only on W_i,
     over features that it computes once.
  3. It takes e such steps on its copy theta_i, with W_i fixed.
  4. It uploads theta_i - theta, and keeps W_i.
  5. The server moves theta by the N_i-weighted mean over the participants, as in FedAvg.

On mini-batches of B examples, step 2 takes H epochs and step 3 takes E.

Served: the newest theta with the client's last W_i, since Algorithm 1 carries over the heads of
absentees. The server keeps theta, and client i keeps W_i.

  paper    here                    shape
  theta    theta                   list of the body's weights
  W_i      HeadState.head          [K, M + 1], the last column is the bias
  tau      local_steps             where batch_size is 0
  e        body_steps              where batch_size is 0
  B, H, E  batch_size, head_epochs, local_epochs
  beta     client_learning_rate
  m        momentum                0.999 in the PFLEGO paper's comparison

Differences from the paper: steps are full-batch unless a batch size is given, and heads start from
Uniform[0, 1), as in the methods that it is compared with, or from 0 where labels are no classes.
Personal weights of the body, if the model has any, are trained in step 3, and stay with W_i.
"""

import dataclasses

from tf_pflego.algorithms.fedper import average_body
from tf_pflego.core import settings
from tf_pflego.core.algorithm import Algorithm, Weights
from tf_pflego.core.local_training import FULL_BATCH, FULL_BATCHES, IN_BATCHES, StepsOrMiniBatches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.heads.descent import gradient_descent
from tf_pflego.models.personalization import HeadRule
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedRepConfig(AveragingServer, StepsOrMiniBatches):
    """Hyper-parameters of FedRep."""

    body_steps: int = settings.setting(
        5,
        "e, number of FedRep's full-batch steps on the body, which come last (at most all)",
        at_least=0,
        read_with=FULL_BATCHES,
    )
    local_steps: int = settings.local_steps(read_with=FULL_BATCHES)
    head_epochs: int = settings.head_epochs(read_with=IN_BATCHES)
    work: str = settings.work(read_with=IN_BATCHES)


def build_fedrep(model: SplitModel, config: FedRepConfig) -> Algorithm:
    """Returns FedRep for `model`."""
    full_batch = config.batch_size == FULL_BATCH
    body_steps = min(config.body_steps, config.local_steps)
    body_passes = body_steps if full_batch else config.passes

    def train_head(head, features, client):
        if full_batch:
            objective = model.head_objective(features, client)
            steps, rate = config.local_steps - body_steps, config.rate(client)
            decay = config.client_weight_decay
            return gradient_descent(objective, head, steps, rate, config.momentum, decay)
        client = client._replace(examples=features)
        return config.minimize(model.head_loss, head, client, config.head_epochs, stream=1)

    def local_update(weights, client):
        features = model.features(weights.theta, client)
        head = train_head(weights.head, features, client)

        def loss(theta, batch):
            return model.loss(Weights(theta, head), batch)

        return Weights(config.minimize(loss, weights.theta, client, body_passes), head)

    rule = HeadRule(model)
    return average_body("fedrep", model, config, local_update, rule, keeps_personal=True)
