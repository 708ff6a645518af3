"""The first table of README.md: what a round costs and how accurate the clients' models become.

It is made from `results/table1.csv`, which `reproduce.py` writes, and `results/round_times.json`,
which `time_methods.py` writes; `reproduce.py redraw` makes it.
"""

import json
import pathlib

import tables

_EXPLANATION = """\
Fashion-MNIST, 100 clients, 20 participants in a round, 50 local steps, on TFF. *Time of a round* is
in rounds of PFLEGO that were timed in turn with the method's. Test accuracy, in percent, is that of
a round's participants right after their training, as the mean of the last ten of 200 rounds and of
the seeds. Clients hold two, five or ten classes.
"""


def page_of(results: pathlib.Path) -> str:
    """Returns the Markdown page with the table.

    Args:
      results: The directory of table1.csv and round_times.json.
    """
    times = json.loads((results / "round_times.json").read_text(encoding="utf-8"))["fashion_mnist"]
    rows = [row for row in tables.read_runs(results, "table1") if row["dataset"] == "fashion_mnist"]
    heads = ["method", "time of a round", "2 classes", "5 classes", "10 classes"]
    lines = ["# Cost and accuracy", "", _EXPLANATION]
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    methods = list(dict.fromkeys(row["algorithm"] for row in rows))
    for method in sorted(methods, key=lambda method: method != "pflego"):
        mark = "**" if method == "pflego" else ""
        ratio = 1.0 if method == "pflego" else times[method]["over_pflego"]
        cells = [f"{mark}`{method}`{mark}", f"{mark}{ratio:.1f}{mark}"]
        for degree in ("high", "medium", "no"):
            own = [
                row[tables.PARTICIPANTS]
                for row in rows
                if (row["algorithm"], row["personalization"]) == (method, degree)
            ]
            cells.append(f"{tables.PERCENT * sum(own) / len(own):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
