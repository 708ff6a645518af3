"""The settings of what happens to uploads on their way, and the wrappers that they ask for."""

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
from tf_pflego.core.settings import setting

NONE = "none"
_of_compression = functools.partial(setting, read_with=("compression", None))


@dataclasses.dataclass(frozen=True)
class PrivacySettings:
    """Privacy, as in --dp_epsilon=2 --dp_delta=1e-5 --participation=binomial."""

    dp_epsilon: float = setting(
        0.0,
        "epsilon of user-level differential privacy after the last round, for which the noise is "
        "found; 0 for none",
        at_least=0,
    )
    dp_delta: float = setting(1e-5, "delta of differential privacy", above=0, below=1)
    dp_noise_multiplier: float = setting(
        0.0,
        "deviation of the noise on a sum over the bound of an upload, in place of --dp_epsilon",
        at_least=0,
    )
    dp_mechanism: str = setting(
        accounting.MECHANISMS[0],
        "noise: drawn anew in each round (gaussian), correlated over rounds, for "
        "--participation=cyclic (banded), added by clients to integers of secure sums (skellam) or "
        "by each client to an upload that the server sees (local)",
        choices=accounting.MECHANISMS,
    )
    clip_norm: float = setting(
        privacy.ADAPTIVE,
        "largest norm of an upload, for privacy, secure sums and --robust_sum=norm_bound; adaptive "
        "for one that follows the median of the norms, for --dp_mechanism=gaussian alone",
        above=0,
        words=(privacy.ADAPTIVE,),
    )
    secure_sum_bits: int = setting(
        0,
        "bits of the integers of a secure sum, which clients upload in place of numbers; 0 for "
        "numbers",
        at_least=0,
        at_most=32,
    )


@dataclasses.dataclass(frozen=True)
class UploadSettings:
    """Uploads, as in --compression=quantized --compression_bits=8."""

    compression: str = setting(
        NONE,
        "how uploads are made smaller: rounded at random to a few bits (quantized), a random "
        "part of the numbers (masked) or the largest ones, the rest later (top_k)",
        choices=(NONE, *compression.COMPRESSIONS),
    )
    compression_bits: int = setting(
        8,
        "bits of a number",
        at_least=1,
        at_most=16,
        read_with=("compression", ("quantized",)),
    )
    robust_sum: str = setting(
        NONE,
        "what takes the place of the mean over participants: the mean of uploads of a bounded norm "
        "(norm_bound), or what few wrong ones cannot move far, of each number (median, "
        "trimmed_mean) or of whole uploads (geometric_median)",
        choices=(NONE, *robust.ROBUST_SUMS),
    )
    trimmed_share: float = setting(
        0.1,
        "share of the values at each end that a trimmed mean leaves out",
        at_least=0,
        below=0.5,
        read_with=("robust_sum", ("trimmed_mean",)),
    )
    attack: str = setting(
        NONE,
        "what attackers do: upload the opposite (sign_flip), learn wrong labels (label_flip) or "
        "upload large noise (noise)",
        choices=(NONE, *attacks.ATTACKS),
    )
    attackers: float = setting(
        0.2,
        "share of the clients that attack",
        at_least=0,
        at_most=1,
        read_with=("attack", attacks.ATTACKS),
    )


def check(config: Any) -> None:
    """Raises ValueError if settings of privacy and of sums do not go together."""
    takes_sums = {
        "dp_epsilon": is_private(config) and config.dp_mechanism != accounting.SKELLAM,
        "secure_sum_bits": bool(config.secure_sum_bits),
        "robust_sum": config.robust_sum != NONE,
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
    needs_number = config.secure_sum_bits or config.robust_sum == robust.NORM_BOUND
    if needs_number and config.clip_norm == privacy.ADAPTIVE:
        raise ValueError(
            "`clip_norm` must be a number for secure sums and for robust_sum=norm_bound; got "
            "adaptive. Set e.g. `clip_norm=1`."
        )


def is_private(config: Any) -> bool:
    """Returns whether a run has differential privacy."""
    return bool(config.dp_epsilon or config.dp_noise_multiplier)


def of_uploads(config: Any) -> tuple[Any, ...]:
    """Returns all that the wrappers of a run follow from, by which traces are known."""
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
    """Returns the arguments of `private.private` that say what a private run claims."""
    return {
        "num_rounds": config.num_rounds,
        "epsilon": config.dp_epsilon or None,
        "noise_multiplier": config.dp_noise_multiplier or None,
        "delta": config.dp_delta,
        "mechanism": config.dp_mechanism,
        "bits": config.secure_sum_bits or secure.BITS,
    }


def epsilon_at_the_end(config: Any, simulation: Any) -> float:
    """Returns epsilon of a private simulation after all rounds, by the noise that it has."""
    multiplier = float(simulation.server_state.wrapper[0].noise_multiplier)
    claim = claimed(config) | {"epsilon": None, "noise_multiplier": multiplier}
    exchanges = len(simulation.algorithm.exchanges)
    accountant = private.accountant_of(simulation.participation, exchanges, **claim)
    return accountant.epsilon(config.num_rounds * exchanges)


def _wrapped(algorithm, config, participation):
    if config.attack != NONE:
        algorithm = attacks.attacked(algorithm, config.attack, config.attackers, seed=config.seed)
    if config.compression != NONE:
        algorithm = compression.compressed(
            algorithm,
            config.compression,
            bits=config.compression_bits,
        )
    if is_private(config):
        return private.private(
            algorithm, participation, clip_norm=config.clip_norm, **claimed(config)
        )
    if config.secure_sum_bits:
        secure.refuse_few_bits(config.secure_sum_bits, participation.federation)
        return secure.secure(algorithm, bits=config.secure_sum_bits, clip_norm=config.clip_norm)
    if config.robust_sum != NONE:
        return robust.robust(
            algorithm,
            config.robust_sum,
            clip_norm=config.clip_norm,
            trimmed_share=config.trimmed_share,
        )
    return algorithm
