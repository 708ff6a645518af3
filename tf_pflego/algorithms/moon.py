"""MOON: federated averaging with local features near the server network's features.

Li, He and Song, "Model-Contrastive Federated Learning", Algorithm 1. Learnt: one network w for all.

A round:
  1. The server sends w to the participants.
  2. Client i trains w_i from w, on mini-batches, on its loss plus mu times the contrastive loss
     -log(e^(s(z, z_w) / tau) / (e^(s(z, z_w) / tau) + e^(s(z, z_i) / tau))), where s is the cosine
     of two features of the same example: z under w_i, z_w under w, and z_i under the network of the
     client's last participation.
  3. It uploads w_i - w, and keeps w_i.
  4. The server moves w by the N_i-weighted mean over the participants, as in FedAvg.

Served: the newest w, the output of Algorithm 1, or w fine-tuned as in FedAvg, on the loss without
contrast. The server keeps w, and client i keeps its last w_i. In its first round w replaces it, and
the gradient is FedAvg's.

  paper    here                    shape
  w        SharedState.weights     body and classifier
  w_i      PersonalState.weights   the same
  mu       contrast_weight
  tau      contrast_temperature
  z        model.features          [n, M]

Differences from the paper: the features are the classifier's inputs. The paper's networks have two
more layers between, a projection head, and compare its output.
"""

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.fedavg import average
from tf_pflego.algorithms.local import PersonalState
from tf_pflego.core import nests, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import MiniBatches, ServesOneNetwork
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.core.tasks import flat
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class MoonConfig(AveragingServer, MiniBatches, ServesOneNetwork):
    """Hyper-parameters of MOON."""

    contrast_weight: float = settings.setting(
        1.0, "mu, weight of the contrastive loss of MOON", at_least=0
    )
    contrast_temperature: float = settings.setting(
        0.5, "tau, temperature of the contrastive loss of MOON", above=0
    )


def build_moon(model: SplitModel, config: MoonConfig) -> Algorithm:
    """Returns MOON for `model`."""
    model = model.with_shared_classifier()

    def directions(features, batch):
        """Returns features of norm 1, [n, M], for sequences only at labelled positions."""
        return tf.math.l2_normalize(flat(features, batch.labels)[0], axis=1)

    def client_update(sent, state, client, round_):
        def loss(weights, batch):
            features = model.features(weights.theta, batch)
            z, of_server, of_last = (
                directions(one, batch)
                for one in (
                    features,
                    model.features(sent.theta, batch),
                    model.features(state.weights.theta, batch),
                )
            )
            further = tf.reduce_sum(z * (of_last - of_server), axis=1)
            contrast = tf.reduce_mean(tf.math.softplus(further / config.contrast_temperature))
            supervised = model.head_loss(weights.head, batch._replace(examples=features))
            return supervised + config.contrast_weight * contrast

        weights = config.minimize(loss, sent, client)
        moved = nests.subtract(weights, sent)
        return ClientResult(weights, PersonalState(weights), averaged=moved)

    def init_client(server, seed, classes):
        return PersonalState(server.weights)

    served = {"generic": config.served(model)}
    return average("moon", model, config, client_update, init_client=init_client, served=served)
