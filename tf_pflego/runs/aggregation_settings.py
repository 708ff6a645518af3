"""The settings of the aggregation of uploads, and the wrappers that they ask for."""

import dataclasses
import functools
from typing import Any

from tf_pflego.aggregation import accounting, attacks, compression, privacy, private, robust, secure
from tf_pflego.aggregation.declared import NONE
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import Role, setting

_here = functools.partial(setting, role=Role.HERE)
_IF_PRIVATE: dict[str, Any] = {"dp_epsilon": None, "dp_noise_multiplier": None}


@dataclasses.dataclass(frozen=True)
class PrivacySettings:
    """Privacy, as in --dp_epsilon=2 --dp_delta=1e-5 --participation=binomial."""

    dp_epsilon: float = setting(
        0.0,
        "epsilon of user-level differential privacy after the last round, which determines the "
        "noise, or 0 for none",
        at_least=0,
    )
    dp_delta: float = setting(
        1e-5, "delta of differential privacy", above=0, below=1, read_with=_IF_PRIVATE
    )
    dp_noise_multiplier: float = setting(
        0.0,
        "deviation of the noise on a sum over the bound of an upload, in place of --dp_epsilon",
        at_least=0,
    )
    dp_mechanism: str = setting(
        accounting.MECHANISMS[0],
        "noise: independent in each round (gaussian), correlated over rounds, for "
        "--participation=cyclic (banded), added by clients to integers of secure sums (skellam) or "
        "by each client to its own upload (local)",
        choices=accounting.MECHANISMS,
        read_with=_IF_PRIVATE,
    )
    clip_norm: float = setting(
        privacy.ADAPTIVE,
        "largest norm of an upload, for privacy, secure sums and --robust_sum=norm_bound, or "
        "adaptive to follow the median of the norms, only for --dp_mechanism=gaussian",
        above=0,
        words=(privacy.ADAPTIVE,),
        read_with=_IF_PRIVATE | {"secure_sum_bits": None, "robust_sum": (robust.NORM_BOUND,)},
    )
    secure_sum_bits: int = _here(
        0,
        "bits of the integers of a secure sum, which clients upload in place of numbers; 0 for "
        "numbers",
        at_least=0,
        at_most=32,
    )

    @property
    def is_private(self) -> bool:
        """Whether the run has differential privacy."""
        return bool(self.dp_epsilon or self.dp_noise_multiplier)


@dataclasses.dataclass(frozen=True)
class UploadSettings:
    """Uploads, as in --compression=quantized:8 --attack=sign_flip:0.2 --robust_sum=median."""

    compression: str = compression.CHOICE.field()
    robust_sum: str = robust.CHOICE.field()
    attack: str = attacks.CHOICE.field(Role.HERE)


# In the order in which they go around a method.
_WRAPPERS = sorted(
    (one.DECLARED for one in (attacks, compression, private, robust, secure)),
    key=lambda declared: declared.order,
)


def check(config: Any) -> None:
    """Raises ValueError if a setting of uploads is invalid, or some do not go together."""
    kinds = {
        one.name: one.of(config)[0] for one in (compression.CHOICE, robust.CHOICE, attacks.CHOICE)
    }
    is_skellam = config.is_private and config.dp_mechanism == accounting.SKELLAM
    takes_sums = {
        "dp_epsilon": config.is_private and not is_skellam,
        "secure_sum_bits": bool(config.secure_sum_bits),
        "robust_sum": kinds["robust_sum"] != NONE,
    }
    several = [name for name, is_taken in takes_sums.items() if is_taken]
    if len(several) > 1:
        raise ValueError(
            f"`{several[0]}` must be given without `{several[1]}`, since each defines the sum of "
            f"uploads; got both. Remove one, or choose dp_mechanism={accounting.SKELLAM} for "
            "noise on secure sums."
        )
    if config.dp_epsilon and config.dp_noise_multiplier:
        raise ValueError(
            "`dp_epsilon` must be given without `dp_noise_multiplier`, which means the same; got "
            f"{config.dp_epsilon} and {config.dp_noise_multiplier}. Leave one out."
        )
    if is_skellam and not config.secure_sum_bits:
        raise ValueError(
            f"`secure_sum_bits` must be given with dp_mechanism={accounting.SKELLAM}, since "
            "clients add its noise to the integers of secure sums; got 0. Set e.g. "
            "`secure_sum_bits=24`."
        )
    needs_number = config.secure_sum_bits or kinds["robust_sum"] == robust.NORM_BOUND
    if needs_number and config.clip_norm == privacy.ADAPTIVE:
        raise ValueError(
            "`clip_norm` must be a number for secure sums and for robust_sum=norm_bound; got "
            "adaptive. Set e.g. `clip_norm=1`."
        )


def of_uploads(config: Any) -> tuple[Any, ...]:
    """Returns all settings that decide a run's wrappers, as a key of traces."""
    fields = *dataclasses.fields(PrivacySettings), *dataclasses.fields(UploadSettings)
    who_attacks = config.seed if config.attack != NONE else None  # The attackers follow from it.
    rounds = config.num_rounds if config.is_private else None  # The noise follows from it.
    return *(getattr(config, field.name) for field in fields), who_attacks, rounds


def wrapped(algorithm: Algorithm, config: Any, participation: Participation) -> Algorithm:
    """Returns the method of a run with the wrappers that its settings ask for, in their order."""
    for wrapper in _WRAPPERS:
        algorithm = wrapper.around(algorithm, config, participation)
    return algorithm


def epsilon_of(config: Any, participation: Participation, num_exchanges: int) -> float:
    """Returns the epsilon of a private run after all its rounds."""
    accountant = private.accountant_of(participation, num_exchanges, **private.claimed(config))
    return accountant.epsilon(config.num_rounds * num_exchanges)


def epsilon_after(config: Any, simulation: Any, rounds: int) -> float:
    """Returns epsilon of a private simulation after so many further rounds, by its noise."""
    states = simulation.server_state.wrapper
    claim = private.claimed(config) | {"epsilon": None}
    claim["noise_multiplier"] = float(states[0].noise_multiplier)
    accountant = private.accountant_of(simulation.participation, len(states), **claim)
    rounds += simulation.ledger.more(simulation.round_number)
    return accountant.epsilon(sum(int(one.releases) for one in states) + rounds * len(states))
