"""The settings of a run with clients that are programs on other machines."""

import dataclasses
import functools
from typing import Any

from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.settings import Role, setting
from tf_pflego.data import client_names
from tf_pflego.simulation import engine_choice

_of_devices = functools.partial(setting, read_with={"engine": ("devices",)}, role=Role.HERE)
_of_server = functools.partial(_of_devices, role=Role.PLACE)


@dataclasses.dataclass(frozen=True)
class DeviceSettings:
    """Clients on other machines, as in --sockets=DIR --client_names=north,south."""

    sockets: str = _of_server(
        "", "directory with a socket for each client, as carriers show them", is_path=True
    )
    client_names: str = _of_devices(
        "", "what all clients are called, separated by commas, in the order of their numbers"
    )
    round_timeout: float = _of_server(
        600.0, "seconds after which a round goes on without those that have not reported", above=0
    )
    min_reports: int = _of_server(
        1, "reports without which a round goes on waiting after its timeout", at_least=1
    )
    num_spare_clients: int = _of_devices(
        0,
        "how many clients more than --clients_per_round are drawn in a round, of which the first "
        "to report take part",
        at_least=0,
    )


def names_of(run_config: Any) -> tuple[str, ...]:
    """Returns the names of the clients, checked."""
    names = [name.strip() for name in run_config.client_names.split(",") if name.strip()]
    if not names:
        raise ValueError(
            "`client_names` must name the clients; got nothing. Set e.g. "
            "`client_names='site_a,site_b,site_c'`."
        )
    return tuple(client_names.checked(names, len(names)) or ())


def check(run_config: Any) -> None:
    """Raises ValueError if settings for clients on other machines do not go together."""
    if not engine_choice.is_elsewhere(run_config.engine):
        return
    if run_config.num_spare_clients and run_config.participation != "fixed":
        raise ValueError(
            "`num_spare_clients` must be 0 unless `participation` is fixed; got "
            f"{run_config.num_spare_clients} with {run_config.participation}. Change one."
        )
    named = len(run_config.client_names.split(","))
    if run_config.min_reports > (most := run_config.most_per_round(named)):
        raise ValueError(
            f"`min_reports` must be at most clients_per_round={most}; got "
            f"{run_config.min_reports}. Lower `min_reports`."
        )
    if run_config.is_private and run_config.num_spare_clients:
        raise ValueError(
            "`num_spare_clients` must be 0 with differential privacy, since the first clients to "
            f"report are no random sample; got {run_config.num_spare_clients}. Leave it out."
        )
    if run_config.is_private and run_config.client_weights != "uniform":
        raise ValueError(
            "`client_weights` must be uniform with differential privacy, since clients do not "
            f"report their numbers of examples then; got {run_config.client_weights}. Set it to "
            "uniform."
        )
    if run_config.is_private and run_config.output_dir and run_config.checkpoint_every != 1:
        raise ValueError(
            "`checkpoint_every` must be 1 with differential privacy, since a resumed server would "
            f"repeat a sum with other participants; got {run_config.checkpoint_every}. Set it to "
            "1."
        )
    if run_config.is_private and run_config.dp_mechanism in ("skellam", "local"):
        raise ValueError(
            "`dp_mechanism` must be gaussian or banded where clients are other machines, since "
            f"their own noise would come from the server's seed; got {run_config.dp_mechanism}. "
            "Choose another, or simulate it."
        )
    if run_config.secure_sum_bits:
        raise ValueError(
            "`secure_sum_bits` must be 0 where clients are other machines, since the server sees "
            f"their uploads; got {run_config.secure_sum_bits}. Leave it out, or simulate it."
        )
    if run_config.num_new_clients:
        raise ValueError(
            "`num_new_clients` must be 0 where clients are other machines; got "
            f"{run_config.num_new_clients}. Let a new client personalize an exported model."
        )


def refuse_exchanges(algorithm: Algorithm) -> None:
    """Raises ValueError if a private method on other machines has several exchanges in a round."""
    if len(algorithm.exchanges) > 1:
        raise ValueError(
            "`algorithm` must have one exchange per round with differential privacy where clients "
            "are other machines, since a server that is killed between two would repeat the first "
            f"sum; {algorithm.name} has {len(algorithm.exchanges)}. Choose another method."
        )
