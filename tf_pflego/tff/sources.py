"""The clients of a federation as `tff.program` and `tff.simulation` know clients."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_pflego.core.participation import Participation
from tf_pflego.data import checks
from tf_pflego.data.clients import ClientData
from tf_pflego.data.own_arrays import from_arrays
from tf_pflego.system import file_arrays, values
from tf_pflego.tff import feeding
from tf_pflego.tff.installed import tff

_LABELS = ("label", "labels", "y")

_SOURCES: weakref.WeakValueDictionary[bytes, ClientsSource] = weakref.WeakValueDictionary()


def from_tff(
    train: tff.simulation.datasets.ClientData | Mapping[str, Any] | Sequence[Any],
    test: tff.simulation.datasets.ClientData | Mapping[str, Any] | Sequence[Any],
    **options: Any,
) -> ClientData:
    """Returns the clients of TFF's client data, by their names, or of a `tf.data.Dataset` each.

    The clients are read in turn into memory-mapped files, and the data may be larger than the
    memory. The files have no names, and are removed with the clients.

    Args:
      train: The clients with their training examples: TFF's client data, a dictionary of datasets
        by the clients' names, or a list of datasets. An element of a dataset is a pair (example,
        label), or a dictionary of two with the key `label`, `labels` or `y`, or a batch of such
        elements with the same shapes except for the first axis.
      test: The same clients with their test examples, in any order.
      **options: `label_space`, `num_classes`, `name`, `class_names` and `class_mask` of
        `from_arrays`.

    Raises:
      TypeError: These are no client data, or an element has another form.
      ValueError: As `from_arrays`.

    Example, explained in docs/tff.md#from-client-data-to-pflego:
      >>> north, south = (tf.data.Dataset.from_tensor_slices((x[i], y[i])) for i in (0, 1))
      >>> pfl.from_tff([north, south], [north, south]).num_clients
      2
    """
    return from_arrays(_of_clients("train", train), _of_clients("test", test), **options)


def _of_clients(split, source):
    """Returns (examples, labels) by name, or in a list. The examples are parts of a mapped file."""
    if isinstance(source, tff.simulation.datasets.ClientData):
        names, dataset_of = source.client_ids, source.create_tf_dataset_for_client
    elif isinstance(source, Mapping):
        names, dataset_of = list(source), source.__getitem__
    elif isinstance(source, list | tuple):
        names, dataset_of = range(len(source)), source.__getitem__
    else:
        raise TypeError(
            f"`{split}` must be a `tff.simulation.datasets.ClientData`, or a dictionary or list of "
            f"`tf.data.Dataset`; got {type(source).__name__}. For arrays there is `from_arrays`."
        )
    writer, labels = file_arrays.Writer(), {}
    for name in names:
        labels[name] = [np.zeros(0, np.int32)]
        dataset = dataset_of(name)
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                f"client {name} of `{split}` must have a `tf.data.Dataset`; got "
                f"{type(dataset).__name__}. For arrays there is `from_arrays`."
            )
        for element in dataset.as_numpy_iterator():
            example, label = _pair(split, element)
            is_batched = np.ndim(label) == 1
            writer.append(example if is_batched else example[None])
            labels[name].append(np.atleast_1d(label))
    examples, first, pairs = writer.array(), 0, {}
    for name, parts in labels.items():
        of_client = np.concatenate(parts[1:] or parts)
        pairs[name] = (examples[first : first + len(of_client)], of_client)
        first += len(of_client)
    return pairs if isinstance(names, list) else list(pairs.values())


def _pair(split, element):
    """Returns (example, label) of an element of a client's dataset."""
    what = f"examples of `{split}`"
    if isinstance(element, Mapping) and len(element) == 2:
        keys = [key for key in element if key in _LABELS]
        if len(keys) == 1:
            (other,) = element.keys() - set(keys)
            return checks.array(element[other], what), element[keys[0]]
    elif isinstance(element, tuple | list) and len(element) == 2:
        return checks.array(element[0], what), element[1]
    form = sorted(element) if isinstance(element, Mapping) else type(element).__name__
    raise TypeError(
        f"an element of `{split}` must be a pair (example, label), or a dictionary of two with "
        f"the key {' or '.join(_LABELS)}; got {form}. Use `preprocess` of the client data to "
        "convert it."
    )


def to_client_data(
    clients: ClientData, split: str = "train", batch_size: int | None = None
) -> tff.simulation.datasets.ClientData:
    """Returns a split as clients of TFF, each a `tf.data.Dataset` of (example, label) or batches.

    Args:
      clients: The clients' data. Names, or else ids as text, are TFF's client ids.
      split: train, test or validation.
      batch_size: The number of examples in a batch; None for single examples.
    """
    values.instance("clients", clients, ClientData, "Make them with `from_arrays`.")
    values.one_of("split", split, tuple(clients.splits))
    if batch_size is not None:
        values.whole("batch_size", batch_size, 1)
    names = clients.client_names or [str(client) for client in range(clients.num_clients)]
    position = {name: client for client, name in enumerate(names)}

    def dataset(name):
        return dataset_of(clients, position[name], split, batch_size)

    return tff.simulation.datasets.ClientData.from_clients_and_tf_fn(list(names), dataset)


def dataset_of(clients, client, split, batch_size=None):
    """Returns a client's examples and labels as a `tf.data.Dataset`."""
    dataset = tf.data.Dataset.from_tensor_slices(tuple(feeding.data_of(clients, client, split)))
    return dataset if batch_size is None else dataset.batch(batch_size)


class ClientsSource(tff.program.FederatedDataSource):
    """Training examples for `tff.learning.programs.train_model`, as in a `Simulation`.

    Its iterator counts rounds. A checkpoint of TFF contains that count and no data. Read it after
    making a source of the same clients, participation and seed, and it continues with the same
    participants as without the break.

    Args:
      clients: The clients' data.
      participation: The sampling of a round's participants.
      seed: The seed of the random values.
      batch_size: The number of examples in a batch of a client's dataset.

    Attributes:
      dataset_spec: The spec of a client's dataset, for `build_learning_process`.
    """

    def __init__(
        self, clients: ClientData, participation: Participation, seed: int = 0, batch_size: int = 32
    ):
        remedy = "Make one: `Participation(num_clients, clients_per_round)`."
        values.instance("participation", participation, Participation, remedy)
        self.clients, self.participation = clients, participation
        self.seed, self.batch_size = values.seed(seed), values.whole("batch_size", batch_size, 1)
        spec = dataset_of(clients, 0, "train", batch_size).element_spec
        self.dataset_spec = tf.data.DatasetSpec(spec)
        self._type = tff.FederatedType(
            tff.SequenceType(tff.types.tensorflow_to_type(spec)), tff.CLIENTS
        )
        digest = hashlib.blake2b(repr((participation, seed, batch_size)).encode(), digest_size=16)
        digest.update(clients.fingerprints)
        self.key = digest.digest()
        _SOURCES[self.key] = self

    @property
    def federated_type(self) -> tff.FederatedType:
        """The type of what `select` returns."""
        return self._type

    def iterator(self) -> ClientsIterator:
        """Returns the rounds from the first on."""
        return ClientsIterator(self, 0)


class ClientsIterator(tff.program.FederatedDataSourceIterator):
    """Round after round of a `ClientsSource`."""

    def __init__(self, source: ClientsSource, round_number: int):
        self._source, self._round_number = source, round_number

    @property
    def federated_type(self) -> tff.FederatedType:
        """The type of what `select` returns."""
        return self._source.federated_type

    def select(self, k: int | None = None):
        """Returns the datasets of the next round's participants, exactly `k`."""
        self._round_number += 1
        source = self._source
        ids = source.participation.draw(source.seed, self._round_number)
        if k not in (None, len(ids)):
            raise ValueError(
                f"`train_per_round_clients` must be the number of participants; got {k} for a "
                f"round with {len(ids)} take part. Take the `clients_per_round` of the "
                "participation, with the mode fixed."
            )
        return [dataset_of(source.clients, i, "train", source.batch_size) for i in ids.tolist()]

    def __deepcopy__(self, memo):
        return ClientsIterator(self._source, self._round_number)

    def to_bytes(self) -> bytes:
        """Returns which source this is, and the number of the last round."""
        return self._source.key + np.int64(self._round_number).tobytes()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> ClientsIterator:
        """Returns the iterator over a source that is in this process."""
        key, number = bytes(buffer[:16]), int(np.frombuffer(buffer[16:24], np.int64)[0])
        if key not in _SOURCES:
            raise ValueError(
                "the checkpoint must be read with its clients; no `ClientsSource` of the same "
                "clients, participation, seed and batch size is there. Make it first."
            )
        return cls(_SOURCES[key], number)
