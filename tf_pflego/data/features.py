"""Clients with features from the frozen part of a body as examples."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tf_pflego.data.client_split import ClientSplit
from tf_pflego.data.clients import ClientData


@dataclasses.dataclass(frozen=True, repr=False)
class FeatureData(ClientData):
    """`ClientData` of features.

    Attributes:
      raw_test: The test examples before the frozen part, for the test of exported files; None in
        a shard.
    """

    raw_test: ClientSplit | None = None
    _may_overflow: ClassVar[bool] = True  # A round then leaves the client out.

    def shard(self, client_ids: np.ndarray, all_examples: int | None = None) -> ClientData:
        """Returns the features of some clients, as `ClientData.shard` does."""
        without = dataclasses.replace(self, raw_test=None)
        return super(FeatureData, without).shard(client_ids, all_examples)

    def joined_by(self, others: ClientData) -> ClientData:
        """Returns these clients and further clients (see `ClientData.joined_by`)."""
        both = super().joined_by(others)
        after = self.raw_test and self.raw_test.followed_by(raw_test(others))
        return dataclasses.replace(both, raw_test=after)  # type: ignore[call-arg]

    def _only(self, clients, **others):
        raw = self.raw_test and self.raw_test.of_clients(clients)
        return super()._only(clients, raw_test=raw, **others)


def raw_test(clients: ClientData) -> ClientSplit:
    """Returns the clients' test examples before the frozen part of a body."""
    raw = clients.raw_test if isinstance(clients, FeatureData) else None
    return raw or clients.test
