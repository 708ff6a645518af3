"""Methods of the package as the experiment on privacy compares with them.

Both fine-tune what they serve: a client takes more steps on its examples before it is tested.
"""

from __future__ import annotations

import dataclasses

from tf_pflego.algorithms.fedavg import FedAvgConfig, build_fedavg
from tf_pflego.algorithms.mr_mtl import MrMtlConfig, build_mr_mtl
from tf_pflego.core import settings
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.models.split_model import SplitModel


@dataclasses.dataclass(frozen=True)
class FineTunedConfig(FedAvgConfig):
    """Hyper-parameters of FedAvg that is fine-tuned."""

    fine_tuning_steps: int = settings.setting(20, "f, as in `fedavg`", at_least=0)


@dataclasses.dataclass(frozen=True)
class MeanRegularizedConfig(FineTunedConfig, MrMtlConfig):
    """Hyper-parameters of MR-MTL that is fine-tuned."""

    proximal_weight: float = settings.proximal_weight(1.0)


def build_fedavg_fine_tuned(model: SplitModel, config: FineTunedConfig) -> Algorithm:
    """Returns FedAvg whose clients fine-tune the network for themselves."""
    return _fine_tuned(build_fedavg(model, config), config, "fedavg_fine_tuned")


def build_mean_regularized(model: SplitModel, config: MeanRegularizedConfig) -> Algorithm:
    """Returns MR-MTL whose clients fine-tune their networks."""
    return _fine_tuned(build_mr_mtl(model, config), config, "mean_regularized")


def _fine_tuned(algorithm, config, name):
    (served,) = algorithm.served.values()
    served = config.served(algorithm.model, served.weights)
    return dataclasses.replace(algorithm, name=name, served={"personalized": served})
