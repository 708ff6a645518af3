"""PGFed-CE: PGFed that sends one model less to each client.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", appendix D. It is PGFed, except that the server computes mu <grad_j, theta>, one scalar
for each participant j of the last round, which replaces <g-, theta_i> while client i trains. g- is
not sent: two models go down instead of three.

Both approximate mu <grad_j, theta_i>. PGFed follows theta_i from batch to batch, but has the mean
of the gradients for each j. PGFed-CE has the gradient of j, but theta for theta_i. They agree if
the last round had one participant and each client takes one step in a round. With one step, but
several participants, a row of A moves by the same sum (unless elements stop at 0). Otherwise A
differs from the second round on, and theta from the third.

Served: theta_i, as in `pgfed` (Algorithm 1, lines 19 and 22). Everything else is in `pgfed`.

Differences from the paper: as for `pgfed`.
"""

import dataclasses

from tf_pflego.algorithms.pgfed import PGFedConfig, build_pgfed, offsets_of_all
from tf_pflego.core import nests
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split_model import SplitModel


def build_pgfed_ce(model: SplitModel, config: PGFedConfig) -> Algorithm:
    """Returns PGFed-CE for `model`."""
    pgfed = build_pgfed(model, config)
    (of_pgfed,) = pgfed.exchanges

    def broadcast(server, round_):
        gradients, offsets = server.last.kept
        slopes = nests.inner_products(gradients, server.weights)
        return server.weights, *offsets_of_all(server, offsets + slopes)

    def client_update(message, state, client, round_):
        sent, *offsets = message  # They contain what takes the place of <g-, theta_i>.
        return of_pgfed.client_update(
            (sent, nests.zeros_like(sent), *offsets), state, client, round_
        )

    exchanges = (dataclasses.replace(of_pgfed, broadcast=broadcast, client_update=client_update),)
    return dataclasses.replace(pgfed, name="pgfed_ce", exchanges=exchanges)
