"""FedBN: federated averaging in which each client keeps its own batch normalisation.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", Algorithm
1. Learnt: a network for all but each client's scales, offsets and statistics.

A round:
  1. The server sends all weights w but scales and offsets to the participants.
  2. Client i takes tau full-batch gradient steps of rate beta, or E epochs of steps on mini-batches
     of B examples, on w and on its scales and offsets b_i jointly, with momentum m. A batch is
     normalised by its own statistics.
  3. It uploads the difference of its copy of w from the received w, and keeps b_i.
  4. The server moves w by the N_i-weighted mean over the participants, as in FedAvg.

Served: the newest w with the client's own b_i, as in Algorithm 1, and the statistics of all its
examples under these. The server keeps w, and client i keeps b_i.

  paper        here                        shape
  w            SharedState.weights         the other weights of the body, and the classifier
  gamma, beta  the client's state          tuple of the scales and offsets, b_i
  E            local_epochs                where batch_size is not 0

Differences from the paper: its mean over clients is plain, as with client_weights=uniform here. Its
statistics are moving averages over the batches of the local training, which the server's average
then makes stale. Here new clients have them too. Steps are full-batch unless a batch size is given.
Without trained batch normalisation, this is FedAvg. Further personal weights of a body join b_i.
"""

from __future__ import annotations

import dataclasses

from tf_pflego.algorithms.fedavg import average
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import StepsOrMiniBatches
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedBnConfig(AveragingServer, StepsOrMiniBatches):
    """Hyper-parameters of FedBN."""


def build_fedbn(model: SplitModel, config: FedBnConfig) -> Algorithm:
    """Returns FedBN for `model`."""
    model = model.with_shared_classifier().with_personal_normalization()

    def client_update(sent, normalization, client, round_):
        start = model.parts.joined(sent, normalization)
        weights = config.minimize(model.loss, start, client)
        shared, normalization = model.parts.split(weights)
        return ClientResult(weights, normalization, averaged=nests.subtract(shared, sent))

    def personal_model(server, normalization):
        return model.parts.joined(server.weights, normalization)

    fields: dict = {"served": {"personalized": personal_model}, "keeps_personal": True}
    return average("fedbn", model, config, client_update, **fields)
