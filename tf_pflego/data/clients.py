"""The clients' data: arrays in client order, with offsets by client id."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.core.tasks import CLASSIFICATION
from tf_pflego.data import checks, client_checks, client_names, fingerprints, joining, labels
from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.partitions.partition import Partition, joined, parted
from tf_pflego.data.partitions.validation import held_out
from tf_pflego.system import texts, values

if TYPE_CHECKING:
    from tf_pflego.data.tables.preprocessing import Preprocessing  # It takes pyarrow.

LABEL_SPACES = ("local", "global")


class Origin(NamedTuple):
    """The origin of data. Other processes can load them there instead of receiving them."""

    load: Callable[[], ClientData]
    clients: np.ndarray  # [I] int64, which of the clients that `load` returns these are


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The data of a federation.

    Examples may be given in any dtype of numbers: uint8 stays, other floats become float32, bool
    and other integers int32. Labels have the task's form (see `core.tasks`). Classes and
    `num_classes` may have any integer dtype.

    Attributes:
      train: Training examples.
      test: Test examples, of the same dtype and shape.
      num_classes: [I] int32, K_i, the number of classes of each client: its labels are below K_i.
        In other tasks it is the number of outputs, the same for all clients.
      label_space: local (a label is a position among the client's own classes, 0 .. K_i - 1) or
        global (a label is a class), as in other tasks and for positions of sequences.
      partition: The clients' examples as indices into the dataset, or None without a dataset.
      dataset: Name of the dataset.
      classes: Each client's global classes, ascending; by default the partition's or 0 .. K_i - 1.
      class_names: The names of the global classes, in their order, or None for their numbers.
      identities: [I] int64, the seeds of the clients' random values, which stay when other clients
        join or leave. The default is 0 .. I - 1.
      all_examples: The training examples (with uniform weights, the clients) of a federation that
        these clients are a part of, as on one machine of several. None if they are all.
      origin: An origin for other processes that load the same data, or None to send them.
      client_groups: [I] bool by name: groups of clients with a separate accuracy, such as
        `permuted`. The default is the partition's.
      class_mask: Whether a client predicts only among `classes`, in the global label space. In the
        local label space it has no other labels.
      validation: Examples that are neither in the training nor in the test set, of the same dtype
        and shape, or None. See `with_validation`.
      client_names: The clients' names, all different, or None to use only their ids.
      task: The task: classification, multi_label, regression or counts.
      uniform_weights: Whether all clients weigh the same, alpha_i = 1 / I.
      preprocessing: The preprocessing of a table's columns for exported models, or None.
      is_elsewhere: Whether only the clients themselves know their examples and classes.

    Raises:
      TypeError: Examples are no numbers, labels, offsets or classes no integers, or names no text.
      ValueError: The arrays do not fit together, a client has no examples or no class, a label or
        class is out of its range, a float is not finite, an integer does not fit int32, a class has
        no name or shares it, or a group is not one bool per client.

    Example, explained in docs/data.md:
      >>> clients.num_clients, clients.example_shape, clients.num_classes
      (3, (4,), array([2, 2, 2], dtype=int32))
      >>> examples, labels = clients.train.of(0)  # [20, 4] and [20], of the first client
    """

    train: ClientSplit
    test: ClientSplit
    num_classes: np.ndarray
    label_space: str = "local"
    partition: Partition | None = None
    dataset: str = "custom"
    classes: tuple[np.ndarray, ...] = None  # type: ignore[assignment]  # Made if left out.
    class_names: tuple[str, ...] | None = None
    identities: np.ndarray = None  # type: ignore[assignment]  # Made if left out.
    all_examples: int | None = None
    origin: Origin | None = dataclasses.field(default=None, repr=False, compare=False)
    client_groups: Mapping[str, np.ndarray] = None  # type: ignore[assignment]  # Made if left out.
    class_mask: bool = False
    validation: ClientSplit | None = None
    client_names: tuple[str, ...] | None = None
    task: str = CLASSIFICATION
    preprocessing: Preprocessing | None = dataclasses.field(default=None, repr=False)
    is_elsewhere: bool = False
    uniform_weights: bool = False
    _may_overflow: ClassVar[bool] = False

    def __post_init__(self):
        values.one_of("label_space", self.label_space, LABEL_SPACES)
        if labels.check_task(self.task) != CLASSIFICATION:
            object.__setattr__(self, "label_space", "global")
        for field, value in self._stored().items():
            # Frozen is for users: what they gave is replaced once, by what is stored.
            object.__setattr__(self, field, value)

    def _stored(self):
        """Returns a user's value in its stored form, checked."""
        if values.truth("class_mask", self.class_mask) and self.label_space != "global":
            raise ValueError(
                "`class_mask` must not be given in the local label space, where all labels of a "
                "client are its own classes; got True. Leave it out, or set `label_space='global'`."
            )
        if self.class_mask and not self.has_classes:
            raise ValueError(
                "`class_mask` must not be given where clients have no classes, as for "
                f"{self.kind_of_labels}; got True. Leave it out."
            )
        for name, split in self.splits.items():
            values.instance(name, split, ClientSplit, "Make one, or use `from_arrays`.")
        num_classes = client_checks.numbers_of_classes(self.num_classes)
        num_clients = len(num_classes)
        about = num_classes, self.task, self.label_space, self._may_overflow
        splits = {
            name: client_checks.stored_split(name, split, *about)
            for name, split in self.splits.items()
        }
        client_checks.refuse_different(splits)
        groups, classes, names = self.client_groups, self.classes, self.class_names
        if self.partition is not None:
            remedy = "Make one with `round_robin` or `dirichlet`, or leave it out."
            values.instance("partition", self.partition, Partition, remedy)
            groups = self.partition.client_groups if groups is None else groups
            classes = self.partition.classes if classes is None else classes
        classes = client_checks.classes_of_clients(
            classes if self.has_classes else None,  # Every client has all outputs.
            self.label_space,
            num_classes,
            splits,
        )
        if names is not None:
            most = int(num_classes.max()) if self.label_space == "global" else 0
            names = checks.class_names(names, max(most, 1 + max(int(some[-1]) for some in classes)))
        return {
            **splits,
            "num_classes": num_classes,
            "classes": classes,
            "class_names": names,
            "identities": client_checks.identities(self.identities, num_clients),
            "client_names": client_names.checked(self.client_names, num_clients),
            "client_groups": client_checks.client_groups(groups, num_clients),
        }

    def __repr__(self) -> str:
        validation = self.validation and f", {len(self.validation.labels)} validation"
        return (
            f"ClientData({texts.counted(self.num_clients, 'client')} of {self.dataset}, "
            f"{len(self.train.labels)} training{validation or ''} and {len(self.test.labels)} test "
            f"examples, {texts.array(self.example_shape, self.train.examples.dtype)}, "
            f"{texts.span(self.num_classes)} {'classes' if self.has_classes else 'outputs'} per "
            f"client, {self.kind_of_labels})"
        )

    @property
    def splits(self) -> dict[str, ClientSplit]:
        """The splits that there are, by the names of their attributes."""
        splits = {"train": self.train, "test": self.test}
        return splits if self.validation is None else splits | {"validation": self.validation}

    @property
    def has_classes(self) -> bool:
        """Whether an example is of one class, among those that its client has."""
        return self.task == CLASSIFICATION and np.ndim(self.train.labels) == 1

    @property
    def num_clients(self) -> int:
        """I."""
        return len(self.num_classes)

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return self.train.examples.shape[1:]

    @property
    def example_dtype(self) -> tf.DType:
        """The dtype of examples in a model: float32, or int32 for integers other than uint8."""
        return tf.int32 if self.train.examples.dtype == np.int32 else tf.float32

    @functools.cached_property
    def joined_classes(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes of all clients end to end, int32, and their offsets [I + 1]."""
        flat, offsets = joined(self.classes, "classes")
        return flat.astype(np.int32), offsets

    @functools.cached_property
    def num_global_classes(self) -> int:
        """C, the number of named classes, or the largest class plus 1 without names."""
        if self.class_names is not None:
            return len(self.class_names)
        if self.label_space == "global":
            return int(self.num_classes.max())
        return int(self.joined_classes[0].max()) + 1

    @property
    def kind_of_labels(self) -> str:
        """The label space in words, and the classes for a client's predictions."""
        if self.task != CLASSIFICATION:
            return f"{texts.counted(self.train.labels.shape[1], 'label')} for {self.task}"
        if not self.has_classes:
            return f"labels of {self.train.labels.shape[1]} positions"
        return f"{self.label_space} labels{' with a class mask' if self.class_mask else ''}"

    def head_classes(self, client_ids: Sequence[int] | np.ndarray, num_rows: int) -> np.ndarray:
        """Returns [c, num_rows] int32, the global class of each row of the heads of clients [c].

        It is -1 for rows of classes that the client does not have.
        """
        ids, rows = np.asarray(client_ids, np.int64), np.arange(num_rows, dtype=np.int32)
        if self.label_space == "global" and not self.class_mask:
            return np.where(rows < self.num_classes[ids, None], rows, -1)
        classes, offsets = self.joined_classes
        first, last = offsets[ids, None], offsets[ids + 1, None] - 1
        # The last class of a client fills the rows that are left.
        in_order = classes[np.minimum(first + rows, last)]
        if not self.class_mask:
            return np.where(first + rows <= last, in_order, -1)
        masked = np.full(in_order.shape, -1, np.int32)
        np.put_along_axis(masked, in_order, in_order, axis=1)
        return masked

    def class_names_of(self, client_id: int) -> tuple[str, ...]:
        """Returns the names of the K_i classes with a client's labels 0 .. K_i - 1."""
        client_id = values.whole("client_id", client_id, 0, self.num_clients - 1)
        classes = self.classes[client_id]
        if self.label_space == "global":
            classes = np.arange(self.num_classes[client_id])
        names = self.class_names
        return tuple(str(label) if names is None else names[label] for label in classes)

    def name_of(self, client_id: int) -> str:
        """Returns a client's name, or else its id."""
        return str(client_id) if self.client_names is None else self.client_names[client_id]

    @functools.cached_property
    def fingerprints(self) -> np.ndarray:
        """[I, 16] uint8, the fingerprint of each client (see `data.fingerprints`)."""
        classes = self.joined_classes if self.label_space == "local" else None
        return fingerprints.of(self.train, self.test, classes)

    @property
    def whole_partition(self) -> Partition:
        """`partition` or, without a partition, a partition of the clients' own rows.

        Its indices point into the examples of all clients end to end, validation examples after the
        training examples.
        """
        if self.partition is not None:
            return self.partition
        indices: dict[str, Any] = {}
        for name, split in self.splits.items():
            first = len(self.train.labels) if name == "validation" else 0
            rows = np.arange(first, first + len(split.labels))
            indices[f"{name}_indices"] = parted(rows, split.offsets)
        return Partition(self.classes, **indices)

    def groups_of(self, client_ids: np.ndarray | slice) -> dict[str, np.ndarray]:
        """Returns `client_groups` of some clients, in their order."""
        return {name: members[client_ids] for name, members in self.client_groups.items()}

    def part(self, start: int, stop: int) -> ClientData:
        """Returns the clients start .. stop - 1 as a separate federation, numbered from 0.

        Raises:
          ValueError: It would have no client, or one that does not exist.
        """
        start = values.whole("start", start, 0, self.num_clients - 1)
        stop = values.whole("stop", stop, start + 1, self.num_clients)
        # Only the first clients have the identities that they had where they come from.
        origin = {"origin": None} if start else {}
        return self._only(slice(start, stop), identities=None, **origin)

    def without(self, client_ids: Sequence[int]) -> ClientData:
        """Returns the remaining clients in their order, with their identities."""
        leaving = checks.client_ids(client_ids, self.num_clients)
        return self._only(np.setdiff1d(np.arange(self.num_clients), leaving))

    def shard(self, client_ids: np.ndarray, all_examples: int | None = None) -> ClientData:
        """Returns some clients, [c] ascending, with the weights alpha_i that they have here.

        If the federation has more clients than these, `all_examples` counts all their training
        examples, as in `client_weights`.
        """
        return self._only(client_ids, all_examples=all_examples or int(self._counts.sum()))

    def _only(self, clients: slice | np.ndarray, **others: Any) -> ClientData:
        """Returns some of the clients with their attributes."""
        numbers = np.arange(self.num_clients)[clients]
        names, origin = self.client_names, self.origin
        changed = {
            **{name: split.of_clients(clients) for name, split in self.splits.items()},
            "num_classes": self.num_classes[clients],
            "partition": None,
            "classes": tuple(self.classes[client] for client in numbers),
            "identities": self.identities[clients],
            "all_examples": None,
            "origin": origin and Origin(origin.load, origin.clients[clients]),
            "client_groups": self.groups_of(clients),
            "client_names": names and tuple(names[client] for client in numbers),
        }
        return dataclasses.replace(self, **changed | others)

    def joined_by(self, others: ClientData) -> ClientData:
        """Returns these clients and, after them, others with identities not used here.

        Raises ValueError if the others' examples or labels are of another kind, if only one side
        has validation examples or names, or if two have the same name.
        """
        values.instance("others", others, ClientData, "Make them as these were made.")
        return dataclasses.replace(self, **joining.fields_of_both(self, others))

    def with_validation(self, fraction: float, seed: int = 0) -> ClientData:
        """Returns these clients with a validation part of their training examples.

        `data.held_out` selects them. The test examples do not change. Call it on the whole
        federation: the selection and the weights alpha_i depend on all its clients.

        Args:
          fraction: The share of each client's training examples, in (0, 1).
          seed: The seed of the run.

        Raises:
          ValueError: `fraction` or `seed` is out of its range, a client has a single training
            example, or there are validation examples already.
        """
        if self.validation is not None:
            raise ValueError(
                "the clients must not have validation examples yet; they have "
                f"{len(self.validation.labels)}. Choose them once."
            )
        strata = self.train.labels
        if not self.has_classes:
            strata = np.zeros(len(strata), np.int32)
        chosen = held_out(strata, self.train.offsets, fraction, seed)
        load = functools.partial(_load_with_validation, self.origin, fraction, seed)
        return dataclasses.replace(
            self,
            train=self.train.where(~chosen),
            validation=self.train.where(chosen),
            partition=self.partition and self.partition.with_rows_held_out(chosen),
            origin=self.origin and Origin(load, np.arange(self.num_clients)),
        )

    @functools.cached_property
    def client_weights(self) -> np.ndarray:
        """[I] float32, alpha_i = N_i / sum_j N_j over all clients of the federation.

        N_i counts training examples or, for sequences, positions with a label. Uniform N_i are 1.
        """
        return (self._counts / (self.all_examples or self._counts.sum())).astype(np.float32)

    @property
    def _counts(self):
        return self.train.num_labels if not self.uniform_weights else np.ones(self.num_clients, int)

    def moments(self) -> tuple[list[float], list[float]]:
        """Returns the mean and the deviation of the training labels, one number per output.

        They follow from sums over the clients of n_i, of the labels and of their squares: three
        numbers per output that each client could send under secure summation, after which the
        server broadcasts both.
        """
        labels_of_all = self.train.labels.astype(np.float64)
        mean, deviation = labels_of_all.mean(axis=0), labels_of_all.std(axis=0)
        return mean.tolist(), np.where(deviation > 0, deviation, 1.0).tolist()

    @property
    def class_counts(self) -> np.ndarray:
        """[sum |classes_i|] int64, training examples of each client and class in `classes`.

        Without classes, each output has all examples.
        """
        if not self.has_classes:
            return np.repeat(self.train.sizes, self.num_classes)
        classes, offsets = joined(self.classes, "classes")
        owners = np.repeat(np.arange(self.num_clients), self.train.sizes)
        positions = self.train.labels
        if self.label_space == "global":
            positions = client_checks.positions_among_classes(
                "train", positions, self.train.offsets, classes, offsets
            )
        return np.bincount(offsets[owners] + positions, minlength=len(classes))


def _load_with_validation(origin, fraction, seed):
    """Returns the result of `with_validation` for data with this origin."""
    return origin.load()._only(origin.clients).with_validation(fraction, seed)
