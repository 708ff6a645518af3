"""FedMuon: Muon's steps at the clients, with momenta that are corrected by control variates.

Takezawa et al., "FedMuon: Federated Learning with Bias-corrected LMO-based Optimization", ICLR
2026. Without the correction it is LocalMuon, which can stay at a point that is not stationary if
clients differ, even for convex losses (Theorem 1 there). Learnt: one network X for all.

A round:
  1. The server sends X and C, the mean of all clients' control variates.
  2. Client i sets X_i = X and goes on with its momentum M_i. On each mini-batch, K in all, it sets
     M_i <- (1 - a) M_i + a grad F_i(X_i), and takes a step X_i <- X_i + eta lmo(M_i - C_i + C).
     lmo(G) is minus about the nearest matrix to G with equal singular values, by T iterations of
     Newton and Schulz after division by the Frobenius norm.
  3. It uploads X_i - X and C_i+ - C_i for C_i+ = M_i, and keeps C_i+ as C_i.
  4. The server sets X to the plain mean of the participants' X_i, and
     C <- C + (1 / I) sum_i (C_i+ - C_i), so that C stays the mean over all I clients.

Served: the newest X, to all clients, or fine-tuned as in FedAvg. The server keeps X and I C, the
sum of all C_i, which lets clients join, and client i keeps C_i, which is also M_i between rounds.

  paper    here                      shape
  X        ServerState.weights       body and classifier
  C        ServerState.variates / I  the same
  C_i      ClientState.variate       the same; 0 at first
  a        gradient_share            alpha in the paper
  eta      client_learning_rate
  T                                  5, with the polynomial of `optimizers.muon`
  S        round_.num_clients

Differences from the paper: we know it from a summary. It is our reading that M_i and C_i begin at 0
and that M_i lasts from round to round, with and without the correction. As in `optimizers.muon`,
lmo is scaled to a root mean square of 0.4, all axes except the last count as rows, and lmo moves
only the matrices of the body. Vectors, numbers and the classifier move by -eta (M_i - C_i + C)
itself, which is a step of SCAFFOLD for a = 1 with the last gradient as variate. The server may have
other optimisers. Without the correction, the variates are sent but not used.
"""

import dataclasses

import tensorflow as tf

from tf_pflego.algorithms.scaffold import ClientState, with_variates
from tf_pflego.core import nests, optimizers, settings
from tf_pflego.core.algorithm import Algorithm, ClientResult
from tf_pflego.core.local_training import PlainMiniBatches, ServesOneNetwork, gradient
from tf_pflego.core.optimizers import AveragingServer
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FedMuonConfig(AveragingServer, PlainMiniBatches, ServesOneNetwork):
    """Hyper-parameters of FedMuon."""

    gradient_share: float = settings.setting(
        0.1, "a, share of the newest gradient in a client's momentum", above=0, at_most=1
    )
    control_variates: bool = settings.setting(
        True, "correct the momentum by control variates. Without them, the method is LocalMuon"
    )


def build_fedmuon(model: SplitModel, config: FedMuonConfig) -> Algorithm:
    """Returns FedMuon for `model`."""
    model = model.with_shared_classifier()

    def client_update(message, state, client, round_):
        sent, mean_variate = message
        rate = config.rate(client)

        def step(carry, batch):
            weights, momentum = carry
            slope = gradient(model.loss, weights, batch)
            slope = nests.add(slope, nests.scale(config.client_weight_decay, weights))
            momentum = nests.mix(config.gradient_share, slope, momentum)
            along = momentum
            if config.control_variates:
                along = nests.add(nests.subtract(momentum, state.variate), mean_variate)
            return nests.subtract(weights, nests.scale(rate, _direction(along))), momentum

        weights, momentum = config.over_batches(step, (sent, state.variate), client)
        changes = nests.subtract((weights, momentum), (sent, state.variate))
        share = nests.scale(round_.equal_weight, changes)
        return ClientResult(weights, ClientState(momentum), summed=share)

    return with_variates("fedmuon", model, config, client_update)


def _direction(nest):
    """Returns minus lmo of the matrices of the body, and the other leaves."""
    pairs = zip(tf.nest.flatten(nest), optimizers.are_matrices_of_body(nest), strict=True)
    leaves = [
        optimizers.with_equal_singular_values(leaf) if is_matrix else leaf
        for leaf, is_matrix in pairs
    ]
    return tf.nest.pack_sequence_as(nest, leaves)
