"""The settings of the aggregation of uploads, and the wrappers that they ask for."""

import dataclasses
import functools
from typing import Any

from tf_pflego.aggregation import (
    accounting,
    attacks,
    compression,
    privacy,
    private,
    robust,
    secure,
)
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import Role, setting
from tf_pflego.system import values

NONE = "none"
_here = functools.partial(setting, role=Role.HERE)
_IF_PRIVATE: dict[str, Any] = {"dp_epsilon": None, "dp_noise_multiplier": None}


@dataclasses.dataclass(frozen=True)
class PrivacySettings:
    """Privacy, as in --dp_epsilon=2 --dp_delta=1e-5 --participation=binomial."""

    dp_epsilon: float = setting(
        0.0,
        "epsilon of user-level differential privacy after the last round, which determines the "
        "noise; 0 for none",
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
        "largest norm of an upload, for privacy, secure sums and --robust_sum=norm_bound; adaptive "
        "to follow the median of the norms, only for --dp_mechanism=gaussian",
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


@dataclasses.dataclass(frozen=True)
class UploadSettings:
    """Uploads, as in --compression=quantized:8 --attack=sign_flip:0.2 --robust_sum=median."""

    compression: str = setting(
        NONE,
        "compression of uploads: numbers rounded at random to a few bits (quantized:8), a random "
        "share of the numbers (masked:0.01) or the largest numbers first and the rest later "
        "(top_k:0.01); or none",
    )
    robust_sum: str = setting(
        NONE,
        "replacement of the mean over participants: the mean of uploads of a bounded norm "
        "(norm_bound), the median of each number (median), its mean without a share at each end "
        "(trimmed_mean:0.1) or the geometric median of whole uploads (geometric_median); or none",
    )
    attack: str = _here(
        NONE,
        "what a share of the clients does: upload the opposite (sign_flip:0.2), learn wrong labels "
        "(label_flip:0.2) or upload large noise (noise:0.2); or none",
    )


_KINDS = {
    "compression": compression.COMPRESSIONS,
    "robust_sum": robust.ROBUST_SUMS,
    "attack": attacks.ATTACKS,
}
_SHARE = "share", 0.01, {"above": 0, "at_most": 1}
# The number in a value such as quantized:8: the wrapper's argument, its default and its limits.
_NUMBERS: dict[str, tuple[str, float, dict[str, Any]]] = {
    **{"quantized": ("bits", 8, {"at_least": 1, "at_most": 16}), "masked": _SHARE, "top_k": _SHARE},
    robust.TRIMMED_MEAN: ("trimmed_share", 0.1, {"at_least": 0, "below": 0.5}),
    **dict.fromkeys(attacks.ATTACKS, ("attackers", 0.2, {"at_least": 0, "at_most": 1})),
}


def _chosen(config, name):
    """Returns the kind in a setting such as quantized:8, and its number as an argument."""
    text = getattr(config, name)
    kind, colon, number = text.partition(":")
    if values.one_of(name, kind, (NONE, *_KINDS[name])) not in _NUMBERS:
        return values.one_of(name, text, [kind]), {}
    argument, default, limits = _NUMBERS[kind]
    try:
        given: Any = values.number_of(number) if colon else default
    except ValueError:
        given = number  # What is no number is refused by name.
    check = values.whole if isinstance(default, int) else values.number
    return kind, {argument: check(name, given, **limits)}


def check(config: Any) -> None:
    """Raises ValueError if a setting of uploads is invalid, or some do not go together."""
    kinds = {name: _chosen(config, name)[0] for name in _KINDS}
    takes_sums = {
        "dp_epsilon": is_private(config) and config.dp_mechanism != accounting.SKELLAM,
        "secure_sum_bits": bool(config.secure_sum_bits),
        "robust_sum": kinds["robust_sum"] != NONE,
    }
    several = [name for name, is_taken in takes_sums.items() if is_taken]
    if len(several) > 1:
        raise ValueError(
            f"`{several[0]}` must be given without `{several[1]}`, since each says how uploads are "
            f"summed; got both. Leave one out, or take dp_mechanism={accounting.SKELLAM} for noise "
            "on secure sums."
        )
    if config.dp_epsilon and config.dp_noise_multiplier:
        raise ValueError(
            "`dp_epsilon` must be given without `dp_noise_multiplier`, which says the same; got "
            f"{config.dp_epsilon} and {config.dp_noise_multiplier}. Leave one out."
        )
    if (
        is_private(config)
        and config.dp_mechanism == accounting.SKELLAM
        and not config.secure_sum_bits
    ):
        raise ValueError(
            f"`secure_sum_bits` must be given with dp_mechanism={accounting.SKELLAM}, whose noise "
            "clients add to the integers of secure sums; got 0. Set e.g. `secure_sum_bits=24`."
        )
    needs_number = config.secure_sum_bits or kinds["robust_sum"] == robust.NORM_BOUND
    if needs_number and config.clip_norm == privacy.ADAPTIVE:
        raise ValueError(
            "`clip_norm` must be a number for secure sums and for robust_sum=norm_bound; got "
            "adaptive. Set e.g. `clip_norm=1`."
        )


def is_private(config: Any) -> bool:
    """Returns whether a run has differential privacy."""
    return bool(config.dp_epsilon or config.dp_noise_multiplier)


def of_uploads(config: Any) -> tuple[Any, ...]:
    """Returns all settings that decide a run's wrappers, as a key of traces."""
    fields = *dataclasses.fields(PrivacySettings), *dataclasses.fields(UploadSettings)
    who_attacks = config.seed if config.attack != NONE else None  # The attackers follow from it.
    rounds = config.num_rounds if is_private(config) else None  # The noise follows from it.
    return *(getattr(config, field.name) for field in fields), who_attacks, rounds


def wrapped(algorithm: Algorithm, config: Any, participation: Participation) -> Algorithm:
    """Returns the method of a run with the wrappers that its settings ask for, in their order."""
    try:
        return _wrapped(algorithm, config, participation)
    except ValueError as error:  # It names arguments, and users have given settings.
        text = str(error)
        for argument, name in _SETTINGS.items():
            text = text.replace(f"`{argument}`", f"`{name}`")
        raise ValueError(text) from error


_SETTINGS = {name: f"dp_{name}" for name in ("epsilon", "delta", "noise_multiplier", "mechanism")}
_SETTINGS |= {"bits": "secure_sum_bits"}


def claimed(config: Any) -> dict[str, Any]:
    """Returns the arguments of `private.private` with the claims of a private run."""
    return {
        "num_rounds": config.num_rounds,
        "epsilon": config.dp_epsilon or None,
        "noise_multiplier": config.dp_noise_multiplier or None,
        "delta": config.dp_delta,
        "mechanism": config.dp_mechanism,
        "bits": config.secure_sum_bits or secure.BITS,
    }


def epsilon_of(config: Any, participation: Participation, num_exchanges: int) -> float:
    """Returns the epsilon of a private run after all its rounds."""
    accountant = private.accountant_of(participation, num_exchanges, **claimed(config))
    return accountant.epsilon(config.num_rounds * num_exchanges)


def epsilon_after(config: Any, simulation: Any, rounds: int) -> float:
    """Returns epsilon of a private simulation after so many further rounds, by its noise."""
    states = simulation.server_state.wrapper
    claim = claimed(config) | {"epsilon": None}
    claim["noise_multiplier"] = float(states[0].noise_multiplier)
    accountant = private.accountant_of(simulation.participation, len(states), **claim)
    rounds += simulation.ledger.more(simulation.round_number)
    return accountant.epsilon(sum(int(one.releases) for one in states) + rounds * len(states))


def _wrapped(algorithm, config, participation):
    attack, attackers = _chosen(config, "attack")
    if attack != NONE:
        algorithm = attacks.attacked(algorithm, attack, seed=config.seed, **attackers)
    how, number = _chosen(config, "compression")
    if how != NONE:
        algorithm = compression.compressed(algorithm, how, **number)
    if is_private(config):
        return private.private(
            algorithm, participation, clip_norm=config.clip_norm, **claimed(config)
        )
    if config.secure_sum_bits:
        secure.refuse_few_bits(config.secure_sum_bits, participation.federation)
        return secure.secure(algorithm, bits=config.secure_sum_bits, clip_norm=config.clip_norm)
    robust_sum, share = _chosen(config, "robust_sum")
    if robust_sum != NONE:
        return robust.robust(algorithm, robust_sum, clip_norm=config.clip_norm, **share)
    return algorithm
