"""Clients with features from the frozen part of a body as examples."""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.clients import ClientData


@dataclasses.dataclass(frozen=True, repr=False)
class FeatureData(ClientData):
    """`ClientData` of features.

    Attributes:
      raw_test: The test examples before the frozen part, for the test of exported files.
    """

    raw_test: ClientSplit = None  # type: ignore[assignment]  # Fields before it have defaults.

    def shard(self, client_ids: np.ndarray, all_examples: int | None = None) -> ClientData:
        """Returns the features of some clients, as `ClientData.shard` does."""
        fields = (field.name for field in dataclasses.fields(ClientData))
        features = ClientData(**{name: getattr(self, name) for name in fields})
        return features.shard(client_ids, all_examples)

    def joined_by(self, others: ClientData) -> ClientData:
        """Returns these clients and further clients; see `ClientData.joined_by`."""
        both = super().joined_by(others)
        after = self.raw_test.followed_by(raw_test(others))
        return dataclasses.replace(both, raw_test=after)  # type: ignore[call-arg]

    def _only(self, clients, **others):
        return super()._only(clients, raw_test=self.raw_test.of_clients(clients), **others)


def raw_test(clients: ClientData) -> ClientSplit:
    """Returns the clients' test examples before the frozen part of a body."""
    return clients.raw_test if isinstance(clients, FeatureData) else clients.test
