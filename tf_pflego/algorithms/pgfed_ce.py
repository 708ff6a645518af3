"""PGFed-CE: PGFed that sends one model less to each client.

Luo, Mendieta, Chen and Wu, "PGFed: Personalize Each Client's Global Objective for Federated
Learning", appendix D. It is PGFed, except that the server computes mu <grad_j, theta>, one scalar
for each participant j of the last round, which stands in the place of <g-, theta_i> while client i
trains. g- is not sent: two models go down, and not three.

Everything else is in `pgfed`.

Differences from the paper: those of `pgfed`.
"""

import dataclasses

from tf_pflego.algorithms.pgfed import PGFedConfig, pgfed
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split import SplitModel


@dataclasses.dataclass(frozen=True)
class PGFedCeConfig(PGFedConfig):
    """Hyper-parameters of PGFed-CE."""


def build_pgfed_ce(model: SplitModel, config: PGFedCeConfig) -> Algorithm:
    """Returns PGFed-CE for `model`."""
    return pgfed("pgfed_ce", model, config, slope_at_server=True)
