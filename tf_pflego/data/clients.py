"""The clients' data: arrays in client order, with offsets by client id."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_pflego.data import checks, client_names, fingerprints
from tf_pflego.data.datasets.catalogue import Dataset
from tf_pflego.data.partitions import disagreement
from tf_pflego.data.partitions import partition as partition_lib
from tf_pflego.data.partitions.validation import held_out
from tf_pflego.system import file_arrays, texts, values

LABEL_SPACES = ("local", "global")


@dataclasses.dataclass(frozen=True)
class ClientSplit:
    """The training, test or validation examples of all clients, those of client 0 first.

    `ClientData` checks its splits and brings them into the dtypes named here.

    Attributes:
      examples: [N, ...] uint8, float32 or int32. uint8 stands for images, which a model sees as
        floats in [0, 1]; int32 for tokens and other numbers that it sees as they are.
      labels: [N] int32.
      offsets: [I + 1] int64; client i has the examples from offsets[i] to offsets[i + 1].
    """

    examples: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray

    def __repr__(self) -> str:
        shape = texts.array(self.examples.shape[1:], self.examples.dtype)
        return (
            f"ClientSplit({len(self.labels)} examples of "
            f"{texts.counted(len(self.offsets) - 1, 'client')}, {shape})"
        )

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[I] int64, the number of examples of each client."""
        return np.diff(self.offsets)

    def rows_of(self, client_id: int) -> np.ndarray:
        """Returns the numbers of one client's rows."""
        return np.arange(self.offsets[client_id], self.offsets[client_id + 1])

    def of(self, client_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns views of (examples, labels) of one client, as they are stored."""
        if isinstance(client_id, str):
            raise TypeError(
                "`client_id` must be a whole number, since a split does not know names; got "
                f"{client_id!r}. Give `clients.client_names.index(name)`."
            )
        rows = slice(self.offsets[client_id], self.offsets[client_id + 1])
        return self.examples[rows], self.labels[rows]


class Origin(NamedTuple):
    """Where data come from: other processes load them there instead of being sent them."""

    load: Callable[[], ClientData]
    clients: np.ndarray  # [I] int64, which of the clients that `load` returns these are


@dataclasses.dataclass(frozen=True)
class ClientData:
    """The data of a federation.

    Examples may be given in any dtype of numbers: uint8 stays, other floats become float32, bool
    and other integers int32. Labels and `num_classes` may be of any integer dtype.

    Attributes:
      train: Training examples.
      test: Test examples, of the same dtype and shape.
      num_classes: [I] int32, K_i, the number of classes of each client: its labels are below K_i.
      label_space: local (a label is a position among the client's own classes, 0 .. K_i - 1) or
        global (a label is a class).
      partition: Which examples of the dataset these are; None if the data came some other way.
      dataset: Name of the dataset.
      classes: For each client its global classes, ascending. The default is what the partition
        says, or else 0 .. K_i - 1.
      class_names: The names of the global classes, in their order; None for their numbers.
      identities: [I] int64, one number per client, from which its random draws follow. It stays
        with the client when others join or leave, which changes the clients' positions. The
        default is 0 .. I - 1.
      all_examples: How many training examples all clients of the federation have, if these clients
        are only some of them, as on one machine of several; None if they are all.
      origin: Where another process can load the same data; None if it has to be sent them.
      client_groups: [I] bool by name: groups of clients whose accuracy is also given by itself,
        such as `permuted`. The default is what the partition says.
      class_mask: Whether a client predicts only among `classes`, in the global label space; in the
        local one it has no other labels.
      validation: Examples that are neither trained on nor part of the test, of the same dtype and
        shape; None if there are none. See `with_validation`.
      client_names: What the clients are called, each in another way; None for their ids alone.

    Raises:
      TypeError: Examples are no numbers, labels, offsets or classes no integers, or names no text.
      ValueError: The arrays do not fit together, a client has no examples or no class, a label or
        class is out of its range, a float is not finite, an integer does not fit int32, a class has
        no name of its own, or a group does not say of every client whether it belongs to it.
    """

    train: ClientSplit
    test: ClientSplit
    num_classes: np.ndarray
    label_space: str = "local"
    partition: partition_lib.Partition | None = None
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

    def __post_init__(self):
        values.one_of("label_space", self.label_space, LABEL_SPACES)
        check_class_mask(self.class_mask, self.label_space)
        for name, split in self.splits.items():
            remedy = "Make one, or use `from_arrays`."
            values.instance(name, split, ClientSplit, remedy)
        num_classes = _checked_num_classes(self.num_classes)
        splits = {name: _stored(name, split, num_classes) for name, split in self.splits.items()}
        if self.partition is not None:
            remedy = "Make one with `round_robin` or `dirichlet`, or leave it out."
            values.instance("partition", self.partition, partition_lib.Partition, remedy)
        train = splits["train"].examples
        for name, split in splits.items():
            other = split.examples
            if train.dtype != other.dtype or train.shape[1:] != other.shape[1:]:
                raise ValueError(
                    f"train and {name} examples must have one dtype and one shape; got "
                    f"{train.dtype} {train.shape[1:]} for train and {other.dtype} "
                    f"{other.shape[1:]} for {name}. Prepare both in the same way."
                )
        classes = self.classes
        if classes is None and self.partition is not None:
            classes = self.partition.classes
        if classes is None:
            classes = _first_classes(num_classes)
        else:
            classes = _checked_classes(classes, num_classes, self.label_space, splits)
        identities = _checked_identities(self.identities, len(num_classes))
        names = self.class_names
        if names is not None:
            most = num_classes.max() if self.label_space == "global" else 0
            largest = max(int(own[-1]) for own in classes)
            names = checks.class_names(names, max(int(most), largest + 1))
        stored = {
            **splits,
            "num_classes": num_classes,
            "classes": classes,
            "class_names": names,
            "identities": identities,
            "client_names": client_names.checked(self.client_names, len(num_classes)),
            "client_groups": _checked_groups(self.client_groups, self.partition, len(num_classes)),
        }
        for field, value in stored.items():
            # Frozen is for users: what they gave is replaced once, by what is stored.
            object.__setattr__(self, field, value)

    def __repr__(self) -> str:
        held = "" if self.validation is None else f", {len(self.validation.labels)} validation"
        return (
            f"ClientData({texts.counted(self.num_clients, 'client')} of {self.dataset}, "
            f"{len(self.train.labels)} training{held} and {len(self.test.labels)} test examples, "
            f"{texts.array(self.example_shape, self.train.examples.dtype)}, "
            f"{texts.span(self.num_classes)} classes per client, {self.kind_of_labels})"
        )

    @property
    def splits(self) -> dict[str, ClientSplit]:
        """The splits that there are, by the names of their attributes."""
        splits = {"train": self.train, "test": self.test}
        return splits if self.validation is None else splits | {"validation": self.validation}

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
        """The dtype in which a model sees examples: float32, or int32 for integers but uint8."""
        return tf.int32 if self.train.examples.dtype == np.int32 else tf.float32

    @functools.cached_property
    def joined_classes(self) -> tuple[np.ndarray, np.ndarray]:
        """The classes of all clients end to end, int32, and their offsets [I + 1]."""
        flat, offsets = partition_lib.joined(self.classes, "classes")
        return flat.astype(np.int32), offsets

    @functools.cached_property
    def num_global_classes(self) -> int:
        """C: how many have names; without names, one more than the largest of any client."""
        if self.class_names is not None:
            return len(self.class_names)
        if self.label_space == "global":
            return int(self.num_classes.max())
        return int(self.joined_classes[0].max()) + 1

    @property
    def kind_of_labels(self) -> str:
        """In words, what labels number and among which of them a client predicts."""
        return f"{self.label_space} labels{' with a class mask' if self.class_mask else ''}"

    def head_classes(self, client_ids: Sequence[int] | np.ndarray, num_rows: int) -> np.ndarray:
        """Returns the global class of each row of the heads of some clients.

        Args:
          client_ids: [c].
          num_rows: K, the rows of a head, at least as many as any client has labels.

        Returns:
          [c, K] int32; -1 for rows of classes that the client does not have.
        """
        ids, rows = np.asarray(client_ids, np.int64), np.arange(num_rows, dtype=np.int32)
        if self.label_space == "global" and not self.class_mask:
            return np.where(rows < self.num_classes[ids, None], rows, -1)
        classes, offsets = self.joined_classes
        first, last = offsets[ids, None], offsets[ids + 1, None] - 1
        own = classes[np.minimum(first + rows, last)]  # The last one fills the rows that are left.
        if not self.class_mask:
            return np.where(first + rows <= last, own, -1)
        found = np.full(own.shape, -1, np.int32)
        np.put_along_axis(found, own, own, axis=1)
        return found

    def class_names_of(self, client_id: int) -> tuple[str, ...]:
        """Returns the names of the K_i classes that a client's labels 0 .. K_i - 1 stand for."""
        client_id = values.whole("client_id", client_id, 0, self.num_clients - 1)
        classes = self.classes[client_id]
        if self.label_space == "global":
            classes = np.arange(self.num_classes[client_id])
        names = self.class_names
        return tuple(str(own) if names is None else names[own] for own in classes)

    def name_of(self, client_id: int) -> str:
        """Returns what a client is called: its name, or else its id."""
        return str(client_id) if self.client_names is None else self.client_names[client_id]

    @functools.cached_property
    def fingerprints(self) -> np.ndarray:
        """[I, 16] uint8, by which a client is known again; see `data.fingerprints`."""
        return fingerprints.of(self)

    @property
    def whole_partition(self) -> partition_lib.Partition:
        """`partition` or, without one, that of the clients' own rows.

        The indices are then those into the examples of all clients end to end, where the validation
        examples stand after the training examples.
        """
        if self.partition is not None:
            return self.partition
        rows: dict[str, Any] = {}
        for name, split in self.splits.items():
            first = len(self.train.labels) if name == "validation" else 0
            indices = first + np.arange(len(split.labels))
            rows[f"{name}_indices"] = partition_lib.parted(indices, split.offsets)
        return partition_lib.Partition(self.classes, **rows)

    def groups_of(self, client_ids: np.ndarray | slice) -> dict[str, np.ndarray]:
        """Returns `client_groups` of some clients, in their order."""
        return {name: members[client_ids] for name, members in self.client_groups.items()}

    def part(self, start: int, stop: int) -> ClientData:
        """Returns the clients start .. stop - 1 as a federation of their own, numbered from 0.

        Raises:
          ValueError: It would have no client, or one that there is not.
        """
        start = values.whole("start", start, 0, self.num_clients - 1)
        stop = values.whole("stop", stop, start + 1, self.num_clients)
        splits = {}
        for name, split in self.splits.items():
            rows = slice(split.offsets[start], split.offsets[stop])
            offsets = split.offsets[start : stop + 1] - split.offsets[start]
            splits[name] = ClientSplit(split.examples[rows], split.labels[rows], offsets)
        origin = self.origin
        if origin is not None:  # Only the first clients have the identities that they had there.
            origin = None if start else Origin(origin.load, origin.clients[start:stop])
        ids = np.arange(start, stop)
        return self._those(ids, splits, identities=None, all_examples=None, origin=origin)

    def without(self, client_ids: Sequence[int]) -> ClientData:
        """Returns the other clients in their order; they keep their identities."""
        return self._only(np.setdiff1d(np.arange(self.num_clients), client_ids))

    def shard(self, client_ids: np.ndarray, all_examples: int | None = None) -> ClientData:
        """Returns some clients of this federation, with the weights alpha_i that they have in it.

        Args:
          client_ids: [c] int64, ascending.
          all_examples: How many training examples the federation has, if these are not all.
        """
        return self._only(client_ids, all_examples or int(self.train.offsets[-1]))

    def _only(self, client_ids, all_examples=None):
        splits = {}
        for name, split in self.splits.items():
            rows = np.concatenate([np.zeros(0, np.int64), *map(split.rows_of, client_ids)])
            splits[name] = _taken(split, rows, split.sizes[client_ids])
        origin = self.origin
        origin = None if origin is None else Origin(origin.load, origin.clients[client_ids])
        identities = self.identities[client_ids]
        return self._those(
            client_ids, splits, identities=identities, all_examples=all_examples, origin=origin
        )

    def _those(self, client_ids, splits, **others):
        """Returns some of the clients with these splits; they have what is said of each of them."""
        names = self.client_names
        return dataclasses.replace(
            self,
            **splits,
            num_classes=self.num_classes[client_ids],
            partition=None,
            classes=tuple(self.classes[client] for client in client_ids),
            client_names=None if names is None else tuple(names[client] for client in client_ids),
            client_groups=self.groups_of(client_ids),
            **others,
        )

    def joined_by(self, others: ClientData) -> ClientData:
        """Returns these clients and, after them, others with identities not used here.

        Raises:
          ValueError: The others' examples or labels are of another kind, or either has no
            validation examples or no names while the other has, or two have the same name.
        """
        values.instance("others", others, ClientData, "Make them as these were made.")
        expected, got = (
            (data.train.examples.dtype.name, data.example_shape, data.kind_of_labels)
            for data in (self, others)
        )
        if expected != got:
            raise ValueError(
                f"the clients that join must have {expected[0]} examples of shape {expected[1]} "
                f"and {expected[2]}; got {got[0]} of shape {got[1]} and {got[2]}. "
                "Prepare their data as that of the others."
            )
        if self.splits.keys() != others.splits.keys():
            wanted = "no" if self.validation is None else "some"
            raise ValueError(
                f"the clients that join must have {wanted} validation examples, as the others do; "
                f"got {'some' if wanted == 'no' else 'none'}. Call `with_validation` on the data "
                "of both or of neither."
            )
        splits: dict[str, Any] = {
            name: ClientSplit(
                file_arrays.concatenated([own.examples, other.examples]),
                np.concatenate([own.labels, other.labels]),
                np.concatenate([own.offsets, own.offsets[-1] + other.offsets[1:]]),
            )
            for (name, own), other in zip(self.splits.items(), others.splits.values(), strict=True)
        }
        new = self.identities.max() + 1 + np.arange(others.num_clients)
        groups = {
            name: np.concatenate(
                [
                    data.client_groups.get(name, np.zeros(data.num_clients, bool))
                    for data in (self, others)
                ]
            )
            for name in {**self.client_groups, **others.client_groups}
        }
        return dataclasses.replace(
            self,
            **splits,
            num_classes=np.concatenate([self.num_classes, others.num_classes]),
            partition=None,
            classes=(*self.classes, *others.classes),
            identities=np.concatenate([self.identities, new]),
            all_examples=None,
            origin=None,
            client_names=client_names.joined(self.client_names, others.client_names),
            client_groups=groups,
        )

    def with_validation(self, fraction: float, seed: int = 0) -> ClientData:
        """Returns these clients with a part of their training examples held out for validation.

        Which ones is drawn as `data.held_out` says. The test examples stay as they are. Call it on
        the whole federation: the draw and the weights alpha_i are of all its clients.

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
                f"{len(self.validation.labels)}. Leave out one of the two draws."
            )
        held = held_out(self.train.labels, self.train.offsets, fraction, seed)
        owners = np.repeat(np.arange(self.num_clients), self.train.sizes)
        splits = {}
        for name, chosen in (("train", ~held), ("validation", held)):
            sizes = np.bincount(owners[chosen], minlength=self.num_clients)
            splits[name] = _taken(self.train, np.flatnonzero(chosen), sizes)
        partition, origin = self.partition, self.origin
        if partition is not None:
            partition = partition.with_rows_held_out(held)
        if origin is not None:
            load = functools.partial(_load_with_validation, origin, fraction, seed)
            origin = Origin(load, np.arange(self.num_clients))
        return dataclasses.replace(self, **splits, partition=partition, origin=origin)

    @functools.cached_property
    def client_weights(self) -> np.ndarray:
        """[I] float32, alpha_i = N_i / sum_j N_j over all clients of the federation."""
        all_examples = self.all_examples or self.train.offsets[-1]
        return (self.train.sizes / all_examples).astype(np.float32)

    @property
    def class_counts(self) -> np.ndarray:
        """[sum |classes_i|] int64, training examples of each client and class in `classes`."""
        classes, offsets = partition_lib.joined(self.classes, "classes")
        owners = np.repeat(np.arange(self.num_clients), self.train.sizes)
        if self.label_space == "local":
            places = offsets[owners] + self.train.labels
        else:
            # Both the clients and the classes of each ascend, and therefore these numbers.
            width = self.num_classes.max()
            held = np.repeat(np.arange(self.num_clients), np.diff(offsets)) * width + classes
            places = np.searchsorted(held, owners * width + self.train.labels)
        return np.bincount(places, minlength=len(classes))


def federate(
    dataset: Dataset,
    partition: partition_lib.Partition,
    label_space: str = "local",
    load: Callable[[], ClientData] | None = None,
    class_mask: bool = False,
) -> ClientData:
    """Deals a dataset out to clients.

    Args:
      dataset: The examples.
      partition: Who holds which of them.
      label_space: local or global; see `ClientData`.
      load: Loads the same clients in another process, which then need not be sent there.
      class_mask: Whether a client predicts only among the classes that it holds; see `ClientData`.

    Raises:
      TypeError: As `ClientData`; and indices that are no integers.
      ValueError: As `ClientData`; and an index that the dataset does not have or that is dealt
        twice, or an example of a class that its client does not hold, or a renaming that is no
        permutation of the classes, or a shift of examples that are no images.
    """
    values.instance("dataset", dataset, Dataset, "Make one, or use `load`.")
    remedy = "Make one with `round_robin` or `dirichlet`."
    values.instance("partition", partition, partition_lib.Partition, remedy)
    values.one_of("label_space", label_space, LABEL_SPACES)
    values.whole("num_classes", dataset.num_classes, 1, checks.LABEL_LIMIT)
    sources = {"train": dataset.train, "test": dataset.test or dataset.train}
    for split, source in sources.items():
        labels = checks.class_labels(source.labels, f"`{split}.labels`")
        examples = checks.array(source.examples, f"`{split}.examples`")
        _refuse_unpaired(split, examples, labels)
    sizes = {split: len(source.labels) for split, source in sources.items()}
    dealt = {
        "train": _checked_indices("train", partition, partition.train_indices, sizes["train"]),
        "test": _checked_indices("test", partition, partition.test_indices, sizes["test"]),
    }
    if partition.validation_indices is not None:
        sources["validation"] = dataset.train
        dealt["validation"] = _checked_indices(
            "validation", partition, partition.validation_indices, sizes["train"]
        )
    if dataset.test is None:
        _refuse_dealt_twice(dealt)
    else:
        of_train = {split: own for split, own in dealt.items() if split != "test"}
        for of_source in (of_train, {"test": dealt["test"]}):
            _refuse_dealt_twice(of_source)
    classes, class_offsets = partition_lib.joined(partition.classes, "classes")
    checks.refuse_bad_classes(classes, class_offsets, dataset.num_classes)
    disagreement.check(partition, dataset.num_classes)
    splits = {}
    for split, (rows, offsets) in dealt.items():
        labels = np.asarray(sources[split].labels)[rows]
        checks.refuse_labels_outside(split, labels, offsets, dataset.num_classes)
        labels = disagreement.rename(labels, offsets, partition)
        if label_space == "local":
            labels = checks.positions_among_classes(split, labels, offsets, classes, class_offsets)
        examples = np.asarray(sources[split].examples)
        change = disagreement.change_of_images(examples, offsets, partition.shifts)
        examples = file_arrays.take(examples, rows, change)
        splits[split] = ClientSplit(examples, labels, offsets)
    num_classes = np.diff(class_offsets)
    if label_space == "global":
        num_classes = np.full(partition.num_clients, dataset.num_classes)
    return ClientData(
        splits["train"],
        splits["test"],
        num_classes,
        label_space,
        partition,
        dataset.name,
        validation=splits.get("validation"),
        class_names=dataset.class_names,
        origin=None if load is None else Origin(load, np.arange(partition.num_clients)),
        class_mask=class_mask,
    )


def _taken(split, rows, sizes):
    """Returns some rows of a split, in client order, of which client i has sizes[i]."""
    examples = file_arrays.take(split.examples, rows)
    return ClientSplit(examples, split.labels[rows], partition_lib.starts(sizes))


def _load_with_validation(origin, fraction, seed):
    """Returns what `with_validation` returned of data with this origin."""
    return origin.load()._only(origin.clients).with_validation(fraction, seed)


def as_model_inputs(examples: tf.Tensor) -> tf.Tensor:
    """Returns stored examples as a model takes them.

    uint8 becomes float32 in [0, 1], the only place where it does; float32 and int32 stay as they
    are.
    """
    if examples.dtype == tf.uint8:
        # x / 255 in one pass over the memory.
        return tf.raw_ops.Dequantize(
            input=tf.bitcast(examples, tf.quint8),
            min_range=0.0,
            max_range=1.0,
            mode="MIN_COMBINED",
        )
    return examples


def copied_as_model_inputs(examples: tf.Tensor) -> tf.Tensor:
    """Returns `as_model_inputs` in memory of its own, which TensorFlow may write into."""
    inputs = as_model_inputs(examples)
    return tf.raw_ops.DeepCopy(x=examples) if inputs is examples else inputs


def check_class_mask(class_mask: bool, label_space: str) -> None:
    """Raises ValueError for a class mask in the local label space, or one that is no bool."""
    if values.truth("class_mask", class_mask) and label_space != "global":
        raise ValueError(
            "`class_mask` must be left out in the local label space, where all labels of a client "
            "are its own classes; got True. Set `label_space='global'`, or leave it out."
        )


def _checked_num_classes(num_classes):
    """Returns [I] int32."""
    num_classes = checks.integers(num_classes, "`num_classes`")
    if not len(num_classes):
        raise ValueError("there must be at least one client; got none. Add clients.")
    wrong = (num_classes < 1) | (num_classes >= checks.LABEL_LIMIT)
    if wrong.any():
        client = np.argmax(wrong)
        raise ValueError(
            f"`num_classes` must be in [1, {checks.LABEL_LIMIT}) for every client; got "
            f"{num_classes[client]} for client {client}. Give the number of its classes."
        )
    return num_classes.astype(np.int32, copy=False)


def _checked_identities(identities, num_clients):
    """Returns [I] int64."""
    if identities is None:
        return np.arange(num_clients)
    identities = checks.integers(identities, "`identities`").astype(np.int64, copy=False)
    if len(identities) != num_clients or len(np.unique(identities)) != num_clients:
        raise ValueError(
            f"`identities` must be {num_clients} different numbers, one per client; got "
            f"{len(np.unique(identities))} different ones of {len(identities)}. Leave them out, "
            "or number the clients."
        )
    if identities.min() < 0:
        raise ValueError(
            f"`identities` must not be negative; got {identities.min()}. Leave them out, or number "
            "the clients."
        )
    return identities


def _checked_groups(groups, partition, num_clients):
    """Returns [I] bool by name."""
    if groups is None:
        groups = {} if partition is None else partition.client_groups
    values.instance("client_groups", groups, Mapping, "Give truth values by the groups' names.")
    for name, members in groups.items():
        if np.shape(members) != (num_clients,) or np.asarray(members).dtype != bool:
            raise ValueError(
                f"`client_groups` must be {num_clients} truth values for {name!r}, one per client; "
                f"got {np.asarray(members).dtype} of shape {np.shape(members)}. Say of each client "
                "whether it belongs to the group."
            )
    return {name: np.asarray(members) for name, members in groups.items()}


def _stored(name, split, num_classes):
    """Returns the checked split in the dtypes in which it is stored."""
    examples = checks.array(split.examples, f"`{name}.examples`")
    labels = checks.class_labels(split.labels, f"`{name}.labels`")
    offsets = checks.integers(split.offsets, f"`{name}.offsets`").astype(np.int64, copy=False)
    _refuse_unpaired(name, examples, labels)
    if len(offsets) != len(num_classes) + 1 or offsets[0] != 0 or offsets[-1] != len(labels):
        got = f"{len(offsets)} from {offsets[0]} to {offsets[-1]}" if len(offsets) else "none"
        raise ValueError(
            f"`{name}.offsets` must be {len(num_classes) + 1} numbers from 0 to {len(labels)}, "
            f"for {len(num_classes)} clients and {len(labels)} examples; got {got}. "
            "Take the cumulative sum of the clients' numbers of examples."
        )
    sizes = np.diff(offsets)
    if np.any(sizes < 0):
        client = np.argmax(sizes < 0)
        raise ValueError(
            f"`{name}.offsets` must not decrease; got {offsets[client + 1]} after "
            f"{offsets[client]} for client {client}. Put the clients' examples in client order."
        )
    checks.refuse_empty(name, sizes)
    checks.refuse_labels_outside(name, labels, offsets, num_classes)
    examples = checks.storable_examples(name, examples, offsets)
    return ClientSplit(examples, labels.astype(np.int32, copy=False), offsets)


def _refuse_unpaired(name, examples, labels):
    """Raises ValueError unless there is one label for each example, of at least one number."""
    if examples.ndim < 1 or 0 in examples.shape[1:]:
        raise ValueError(
            f"`{name}.examples` must be [N, ...] with numbers in each example; got shape "
            f"{examples.shape}. Put the examples along the first axis."
        )
    if len(examples) != len(labels):
        raise ValueError(
            f"`{name}.labels` must be one for each of the {len(examples)} examples; got "
            f"{len(labels)}. Give every example its label."
        )


def _first_classes(num_classes):
    """Returns 0 .. K_i - 1 for each client, one array for all clients with the same K_i."""
    ranges = {count: np.arange(count) for count in np.unique(num_classes).tolist()}
    for classes in ranges.values():
        classes.setflags(write=False)
    return tuple(map(ranges.__getitem__, num_classes.tolist()))


def _checked_classes(classes, num_classes, label_space, splits):
    """Returns the classes of each client, [K_i] int64."""
    if len(classes) != len(num_classes):
        raise ValueError(
            f"`classes` must be {len(num_classes)} arrays, one per client; got {len(classes)}. "
            "Name the classes of every client."
        )
    flat, offsets = partition_lib.joined(classes, "classes")
    if label_space == "local":
        checks.refuse_bad_classes(flat, offsets, checks.LABEL_LIMIT)
        counts = np.diff(offsets)
        if np.any(counts != num_classes):
            client = np.argmax(counts != num_classes)
            raise ValueError(
                f"client {client}'s classes must be num_classes={num_classes[client]}, one for "
                f"each local label; got {counts[client]}. Name them all."
            )
    else:
        checks.refuse_bad_classes(flat, offsets, num_classes)
        for name, split in splits.items():
            checks.positions_among_classes(name, split.labels, split.offsets, flat, offsets)
    return partition_lib.parted(flat, offsets)


def _checked_indices(split, partition, indices, num_examples):
    """Returns the indices of all clients end to end, and their offsets."""
    if len(indices) != partition.num_clients:
        raise ValueError(
            f"the partition must have the {split} indices of {partition.num_clients} clients, as "
            f"many as it has lists of classes; got {len(indices)}. Give every client both."
        )
    rows, offsets = partition_lib.joined(indices, f"{split} indices")
    checks.refuse_empty(split, np.diff(offsets))
    outside = (rows < 0) | (rows >= num_examples)
    if outside.any():
        row = int(np.argmax(outside))
        raise ValueError(
            f"client {checks.place(row, offsets)[0]}'s {split} indices must be in [0, "
            f"{num_examples}), the number of the dataset's examples; got {rows[row]}. Make the "
            "partition from the labels of this dataset."
        )
    return rows, offsets


def _refuse_dealt_twice(dealt):
    """Raises ValueError if an index occurs twice in the splits, which share their examples."""
    counts = np.bincount(np.concatenate([rows for rows, _ in dealt.values()]))
    if counts.max() > 1:
        index = np.argmax(counts > 1)
        holders = [
            f"client {checks.place(row, offsets)[0]}'s {split} indices"
            for split, (rows, offsets) in dealt.items()
            for row in np.flatnonzero(rows == index)
        ]
        raise ValueError(
            f"every example must be dealt once; got index {index} in {' and in '.join(holders[:2])}"
            ". Take it out of one."
        )
