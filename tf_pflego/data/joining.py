"""Two federations as one."""

from __future__ import annotations

from typing import Any

import numpy as np


def refuse_other_columns(first: Any, others: Any) -> None:
    """Raises ValueError if the numbers of classes, or of a table's columns, mean something else.

    Clients without names of classes or columns are arrays that the user has numbered.
    """
    for name, what in {"class_names": "classes", "preprocessing": "columns"}.items():
        expected, got = getattr(first, name), getattr(others, name)
        if None not in (expected, got) and expected != got:
            raise ValueError(
                f"the clients that join must have the {what} of the others, {expected!r:.200}; got "
                f"{got!r:.200}. Make them with `from_table(..., preprocessing=clients."
                "preprocessing)` or, of arrays, with the same `class_names`."
            )


def fields_of_both(first: Any, others: Any) -> dict[str, Any]:
    """Returns the fields of `ClientData` for the clients of one and, after them, of another.

    Clients with data of different kinds are an error.
    """
    both = (first, others)
    expected, got = (
        f"{data.train.examples.dtype.name} examples of shape {data.example_shape}, "
        f"{data.kind_of_labels}, {'no' if data.validation is None else 'some'} validation "
        f"examples and {'no' if data.client_names is None else 'client'} names"
        f"{' and uniform weights' * data.uniform_weights}"
        for data in both
    )
    if expected != got:
        raise ValueError(
            f"the clients that join must have {expected}; got {got}. Prepare their data as the "
            "other clients' data, with validation examples and names for all clients or for none."
        )
    refuse_other_columns(first, others)
    groups = {
        name: np.concatenate(
            [data.client_groups.get(name, np.zeros(data.num_clients, bool)) for data in both]
        )
        for name in {**first.client_groups, **others.client_groups}
    }
    new = first.identities.max() + 1 + np.arange(others.num_clients)
    names = first.client_names
    return {
        **{name: split.followed_by(others.splits[name]) for name, split in first.splits.items()},
        "num_classes": np.concatenate([first.num_classes, others.num_classes]),
        "partition": None,
        "classes": (*first.classes, *others.classes),
        "identities": np.concatenate([first.identities, new]),
        "all_examples": None,
        "origin": None,
        "client_names": names and (*names, *others.client_names),
        "client_groups": groups,
    }
