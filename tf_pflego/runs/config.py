"""The configuration of a run, which is composed of parts and checks itself."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from tf_pflego import algorithms
from tf_pflego.core.participation import MODES as PARTICIPATIONS
from tf_pflego.core.participation import Participation
from tf_pflego.core.settings import Role, check, refuse_unread, setting
from tf_pflego.data import clients
from tf_pflego.data.datasets import catalogue
from tf_pflego.data.partitions import disagreement
from tf_pflego.data.partitions import partition as partition_lib
from tf_pflego.models import networks
from tf_pflego.runs import aggregation_settings, device_settings, output_settings, table_settings
from tf_pflego.runs.aggregation_settings import PrivacySettings, UploadSettings
from tf_pflego.runs.device_settings import DeviceSettings
from tf_pflego.runs.output_settings import OutputSettings
from tf_pflego.runs.table_settings import TableSettings
from tf_pflego.simulation import engine_choice
from tf_pflego.system import values

UNIFORM = "uniform"  # weights of clients
CLIENTS_PER_ROUND = 20  # if there are so many
COMPILING = "in_process", "ray"  # engines that can compile the training of clients
COMPILED_FROM = 50_000  # participations of a run; with fewer, it takes longer to compile them

_alike = functools.partial(setting, role=Role.ALIKE)
_place = functools.partial(setting, role=Role.PLACE)
_said = functools.partial(setting, role=Role.PLACE | Role.SAID)
_of_dealing = functools.partial(setting, role=Role.DEALING)
_of_clients = functools.partial(setting, role=Role.CLIENTS)
_of_labels = functools.partial(setting, role=Role.CLIENTS | Role.ALIKE)
_here = functools.partial(setting, role=Role.HERE)
# Settings that are read only beside others.
_OF_TFDS = {"table": ("",)}
_of_round_robin = functools.partial(_of_dealing, read_with={"partition": ("round_robin",)})
_of_dirichlet = functools.partial(_of_dealing, read_with={"partition": ("dirichlet",)})
_of_new_clients = functools.partial(_here, read_with={"num_new_clients": None})
_of_ray = functools.partial(_here, read_with={"engine": ("ray",)})
_of_cluster = functools.partial(_place, read_with={"ray_address": None})


@dataclasses.dataclass(frozen=True)
class MethodSettings:
    """Method, as in --algorithm=pflego --network=mlp."""

    algorithm: str = _alike(
        "pflego", "method to train with: its name, or FILE.py:FUNCTION for one of your own"
    )
    network: str = _alike(
        "auto",
        f"body of the model: {', '.join(networks.NETWORKS)}, FILE.keras for one of your own, auto "
        "for the dataset's own",
    )
    personal: str = _alike(
        "",
        "layers and weights of the network that stay with each client, and are trained with its "
        "head: their names, as in adapter,lora_*",
    )


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Data, as in --dataset=fashion_mnist --data_dir=$HOME/data --download."""

    dataset: str = setting(
        "digits",
        f"dataset, by its TFDS name: {', '.join(catalogue.NAMES)}; of those with --client_column, "
        "any; the name of the file with --table",
        role=Role.DATA,
    )
    data_dir: str = _said(
        "", "TFDS data directory; empty for TFDS' own default", is_path=True, read_with=_OF_TFDS
    )
    download: bool = _place(
        False, "fetch the dataset if it is not in the data directory", read_with=_OF_TFDS
    )
    omniglot_splits: str = _of_dealing(
        "train,test", "splits of Omniglot to merge", read_with={"dataset": ("omniglot",)}
    )


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """Clients and partition, as in --partition=dirichlet --dirichlet_alpha=0.1."""

    num_clients: int = _of_dealing(
        0, "I, number of clients; 0 for 100, for 20 with Office-Home, or one per group", at_least=0
    )
    partition: str = _of_dealing(
        "auto",
        "how examples are dealt out: each client has some classes (round_robin), a share of each "
        "(dirichlet) or a group of the dataset (groups); auto for the dataset's own",
        choices=("auto", *partition_lib.NAMES),
    )
    personalization: str = _of_round_robin(
        "high",
        "classes per client: 2 of the C classes (high), C/2 (medium) or all (no)",
        choices=partition_lib.PERSONALIZATIONS,
        read_with=({"partition": ("round_robin",)}, {"classes_per_client": (0,)}),
    )
    classes_per_client: int = _of_round_robin(
        0, "classes per client; 0 for the number that --personalization gives", at_least=0
    )
    dirichlet_alpha: float = _of_dirichlet(
        0.3, "alpha of --partition=dirichlet; smaller for clients that differ more", above=0
    )
    min_examples: int = _of_dirichlet(
        40, "least number of a client's examples with --partition=dirichlet", at_least=1
    )
    label_space: str = _of_labels(
        "local",
        "whether labels number a client's own classes (local) or the dataset's (global)",
        choices=clients.LABEL_SPACES,
    )
    class_mask: bool = _of_labels(
        False,
        "let a client predict only among the classes that it holds; its loss counts no others",
        read_with={"label_space": ("global",)},
    )
    client_weights: str = _of_clients(
        "examples",
        "alpha_i, what a client counts in a mean: as its training examples (examples), or as every "
        "other client (uniform), which does not need to be told how many examples it has",
        choices=("examples", UNIFORM),
    )


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """The task and its statistics, as in --statistics=f1,exact_match."""

    statistics: str = setting(
        "",
        "statistics of a test, separated by commas, with the shown statistic first, or empty for "
        "the task's own, such as accuracy",
    )
    standardize_labels: bool = setting(
        True,
        "train on standardised quantities, with mean and deviation from sums over all clients. "
        "Predictions and errors have the units of the labels",
    )
    huber_delta: float = setting(
        0.0,
        "error, in standardised units, where the loss of a quantity changes from quadratic to "
        "linear growth, or 0 for never",
        at_least=0,
    )


@dataclasses.dataclass(frozen=True)
class DisagreementSettings:
    """Clients that disagree, as in --permuted_fraction=0.5 --label_space=global."""

    permuted_fraction: float = _of_dealing(
        0.0,
        "share of the clients of which each names the classes by a permutation of its own",
        at_least=0,
        at_most=1,
    )
    shifted_fraction: float = _of_dealing(
        0.0,
        "share of the clients whose images are all changed as --shift says",
        at_least=0,
        at_most=1,
    )
    shift: str = _of_dealing(
        "rotate",
        "how the images of shifted clients are changed: rotated by 180 degrees (rotate) or each "
        "value x replaced by 255 - x (invert)",
        choices=tuple(disagreement.SHIFTS),
        read_with={"shifted_fraction": None},
    )


@dataclasses.dataclass(frozen=True)
class FederationSettings:
    """Rounds, as in --num_rounds=500 --clients_per_round=10 --client_dropout=0.1."""

    num_rounds: int = setting(200, "T, number of rounds", at_least=1)
    clients_per_round: int = setting(
        0,
        "r, number of participants per round, or their mean number with --participation=binomial, "
        "or 0 for 20 or all of fewer clients",
        at_least=0,
    )
    participation: str = setting("fixed", "sampling of participants", choices=PARTICIPATIONS)
    clients_per_round_range: str = setting(
        "",
        "least and most participants per round, as least,most, for --participation=range",
        read_with={"participation": ("range",)},
    )
    client_dropout: float = setting(
        0.0,
        "probability in [0, 1) that a sampled client drops out before it reports. Gradients are "
        "then scaled by I / (r (1 - client_dropout))",
        at_least=0,
        below=1,
    )
    seed: int = setting(
        0,
        "seed of the run for all random values",
        at_least=0,
        at_most=values.SEED_LIMIT,
        role=Role.ALIKE | Role.SWEEP,
    )


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Evaluation, as in --eval_every=5 --num_eval_clients=1000."""

    eval_every: int = _here(
        10, "evaluate each round whose number this divides, the first and the last ten", at_least=1
    )
    train_loss_every: int = _here(
        10,
        "compute the training loss in those evaluated rounds whose number this divides, "
        "and in the last round",
        at_least=1,
    )
    num_eval_clients: int = _here(
        0,
        "test a sample of so many clients in evaluated rounds and at the end, the same ones over "
        "the run, and give standard errors; 0 for all clients",
        at_least=0,
    )
    validation_fraction: float = _of_clients(
        0.0,
        "share in [0, 1) of each client's training examples that is not trained on: evaluated "
        "rounds test the clients on it too, by which to choose hyper-parameters",
        at_least=0,
        below=1,
    )


@dataclasses.dataclass(frozen=True)
class NewClientSettings:
    """Clients that take no part, as in --num_new_clients=10."""

    num_new_clients: int = _here(
        0,
        "how many clients, the last ones, take no part and train on their own after the last round",
        at_least=0,
    )
    new_client_epochs: int = _of_new_clients(
        20, "epochs of the new clients, by plain SGD on mini-batches of 128", at_least=0
    )
    new_client_learning_rate: float = _of_new_clients(
        0.01, "learning rate of the new clients", above=0
    )


@dataclasses.dataclass(frozen=True)
class PlaceSettings:
    """Where the clients run, as in --engine=in_process."""

    engine: str = _here(
        engine_choice.DEFAULT,
        "where the clients run: in a worker of TensorFlow Federated (tff), in this process "
        "(in_process), on a Ray cluster (ray) or on machines of their own (devices); tff is the "
        "default where it is installed",
        choices=engine_choice.NAMES,
    )
    activation_gigabytes: float = setting(
        2.0,
        "memory for the activations of all clients that run in parallel. Larger activations pass "
        "through the network in blocks",
        above=0,
    )
    compile: str = _here(
        "auto",
        "whether XLA compiles the training of small clients: on, off, or auto for runs of at least "
        f"{COMPILED_FROM:,} participations; the result is the same up to rounding",
        choices=("auto", "on", "off"),
        read_with={"engine": COMPILING},
    )
    max_restarts: int = _place(
        3,
        "how many times a new TFF worker takes over an exchange whose worker was killed, stopped "
        "or silent, before the run ends",
        at_least=0,
        read_with={"engine": ("tff", "ray")},
    )


@dataclasses.dataclass(frozen=True)
class RaySettings:
    """A Ray cluster, as in --engine=ray --num_shards=8 --ray_address=auto."""

    num_shards: int = _of_ray(
        2, "into how many shards the clients are dealt with --engine=ray", at_least=1
    )
    ray_address: str = _said(
        "",
        "address of a running Ray cluster, or auto for this machine's; empty for a cluster of this "
        "machine alone, which ends with the run",
        read_with={"engine": ("ray",)},
    )
    cpus_per_shard: float = _of_cluster(
        1.0, "cores that the Ray cluster keeps for a shard", at_least=0
    )
    gpus_per_shard: float = _of_cluster(0.0, "GPUs, or a part of one, for a shard", at_least=0)
    node_timeout: float = _of_cluster(
        600.0, "seconds to wait for nodes of the Ray cluster that can take a shard", above=0
    )


# A dataclass takes the fields of its last base first.
@dataclasses.dataclass(frozen=True)
class RunConfig(
    DeviceSettings,
    RaySettings,
    PlaceSettings,
    OutputSettings,
    NewClientSettings,
    EvaluationSettings,
    UploadSettings,
    PrivacySettings,
    FederationSettings,
    DisagreementSettings,
    TaskSettings,
    ClientSettings,
    TableSettings,
    DataSettings,
    MethodSettings,
):
    """The settings of a run, apart from the hyper-parameters of its algorithm.

    Equivalent values of other types are converted: NumPy's numbers, whole floats, and `os.PathLike`
    for directories.

    Raises:
      ValueError: A field does not take its value, or two do not go together.

    Example, explained in docs/program.md#flags-and-flag-files:
      >>> run_config = pfl.RunConfig(dataset="digits", num_clients=20, clients_per_round=5)
      >>> run_config.num_rounds  # a setting that is not given has its default
      200
    """

    def __post_init__(self):
        algorithms.check_name(self.algorithm)
        check(self)
        if not networks.is_file(self.network):
            values.one_of("network", self.network, ("auto", *networks.NETWORKS))
        table_settings.check_source(self)
        refuse_unread(self, self.chosen)
        aggregation_settings.check(self)
        device_settings.check(self)
        output_settings.check(self)
        engine_choice.place_of(self)
        if self.participation == "range":
            bounds = self.clients_per_round_range.split(",")
            if len(bounds) != 2 or not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", b) for b in bounds):
                raise ValueError(
                    "`clients_per_round_range` must be two whole numbers, least,most; got "
                    f"{self.clients_per_round_range!r}. Set e.g. `clients_per_round_range='4,28'`."
                )

    def chosen(self, name: str) -> Any:
        """Returns the value of a setting, or the dataset's default if it is "auto" or 0."""
        return chosen(vars(self), name)

    def participation_of(self, num_clients: int) -> Participation:
        """Returns the sampling of participants from `num_clients` clients."""
        bounds = None
        if self.participation == "range":
            least, most = self.clients_per_round_range.split(",")
            bounds = int(least), int(most)
        drawn = num_clients, self.most_per_round(num_clients), self.participation
        return Participation(*drawn, bounds, self.client_dropout)

    def most_per_round(self, num_clients: float = math.inf) -> int:
        """Returns r for `num_clients` clients."""
        return self.clients_per_round or int(min(CLIENTS_PER_ROUND, num_clients))


def chosen(settings: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a run's setting (see `RunConfig.chosen`)."""
    value = settings[name]
    is_table = settings["client_column"] or settings["dataset"] not in catalogue.KNOWN
    known = catalogue.OF_TABLES if is_table else catalogue.KNOWN[settings["dataset"]]
    return getattr(known, name, value) if value in ("auto", 0) else value


# The parts as help shows them, whose first lines are "Title, as in EXAMPLE.".
PARTS = RunConfig.__bases__[::-1]
