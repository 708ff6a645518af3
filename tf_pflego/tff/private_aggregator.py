"""TFF's aggregator for differential privacy, with the settings of `pfl.with_dp`."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tf_pflego.aggregation.privacy import ADAPTIVE
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.uploaded import Uploaded
from tf_pflego.data.clients import ClientData
from tf_pflego.system import values
from tf_pflego.tff.installed import tff


def private_aggregator(
    algorithm: Algorithm,
    participation: Participation,
    clients: ClientData,
    *,
    noise_multiplier: float,
    clip_norm: float | str = ADAPTIVE,
) -> tff.aggregators.UnweightedAggregationFactory:
    """Returns TFF's aggregator that clips and noises as `pfl.with_dp` does with these settings.

    The bound, the deviation of the noise and therefore epsilon are equal. It returns means, as
    `build_process` expects. All clients must have equal weights, alpha_i = 1 / I, since TFF's
    aggregator does not know their weights.

    Args:
      algorithm: A method that either sums or averages what its clients upload.
      participation: The sampling of participants, which epsilon depends on.
      clients: The future participants.
      noise_multiplier: z, the deviation of the noise over the bound.
      clip_norm: C, the largest norm of an upload, or adaptive.

    Raises:
      ValueError: An argument has an unsupported value, the clients have unequal weights, or the
        method both sums and averages, which TFF would noise separately.
    """
    z = values.number("noise_multiplier", noise_multiplier, at_least=0)
    values.instance("algorithm", algorithm, Algorithm, "Make one with `build_algorithm`.")
    remedy = "Make one: `Participation(num_clients, clients_per_round)`."
    values.instance("participation", participation, Participation, remedy)
    values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
    if not np.allclose(clients.client_weights, 1 / participation.num_clients):
        raise ValueError(
            "`clients` must have equal weights, and be the clients of `participation`, for the "
            "claim of privacy; got others. Make them with `uniform_weights=True`."
        )
    federation = participation.federation
    server = algorithm.init_server(federation)
    uploads = [Uploaded(algorithm, one).specs(server) for one in algorithm.exchanges]
    sums, averages = (
        any(tf.nest.flatten(getattr(one, name)) for one in uploads)
        for name in ("summed", "averaged")
    )
    if sums and averages:
        raise ValueError(
            f"`algorithm` must either sum or average the uploads; got {algorithm.name}, which "
            "does both. Use `pfl.with_dp` and a `Simulation`."
        )
    of_upload = 1 / federation.num_clients if sums else 1.0
    factory, rate = tff.aggregators.DifferentiallyPrivateFactory, federation.mean_clients_per_round
    if clip_norm == ADAPTIVE:  # TFF's other settings are those of `pfl.with_dp` already.
        first = 0.1 * of_upload
        return factory.gaussian_adaptive(z, rate, first, target_unclipped_quantile=0.5)
    bound = values.number("clip_norm", clip_norm, above=0, words=(ADAPTIVE,))
    return factory.gaussian_fixed(z, rate, bound * of_upload)
