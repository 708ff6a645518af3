"""A small table made by chance, with the columns that a table of schools has."""

import numpy as np
import pyarrow as pa
from pyarrow import csv

SIZES = (12, 5, 20, 8)
SCHOOLS = ("1224", "1288", "1296", "1308")


def columns(sizes=SIZES, seed=0):
    """Returns the columns by name; rows are in no order."""
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    school = rng.permutation(np.repeat(np.array([int(s) for s in SCHOOLS[: len(sizes)]]), sizes))
    status = rng.normal(size=count).round(3)
    return {
        "School": school,
        "Sex": np.array(["Female", "Male"])[rng.integers(0, 2, count)],
        "SES": status,
        "year": rng.permutation(count) + 1990,
        "Passed": np.array(["no", "yes"])[(rng.normal(size=count) + status > 0).astype(int)],
        "MathAch": (12 + 3 * status + rng.normal(size=count)).round(3),
    }


def table(**changed):
    return pa.table(columns() | changed)


def written(path, content=None):
    csv.write_csv(pa.table(columns() if content is None else content), path)
    return path
