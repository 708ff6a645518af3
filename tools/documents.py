"""Puts the committed results into what people read.

python tools/documents.py

From results/ it writes the pages that are of no sweep alone (overview.md, round_times.md,
frozen_rounds.md and others there), the flag files of run_configs/fashion_mnist, one per method of
the experiments, with what was measured at their heads, and the tables of README.md and docs/ below
lines like <!-- results/table1/tables.md, table 2 --> or, for facts of the methods, <!-- methods,
table 1 -->. `tf-pflego sweep FILE --output_dir=results --redraw`
draws the tables and figures of the sweeps themselves.
"""

import importlib
import pathlib
import re
import sys
from collections.abc import Sequence

import method_pages

from tf_pflego.sweeps import Cell, Experiment, store
from tf_pflego.system import durable, texts

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
_FILES = ROOT / "run_configs" / "experiments"
sys.path.insert(0, str(_FILES))  # They import those beside them.
_MODULES = {path.stem: importlib.import_module(path.stem) for path in sorted(_FILES.glob("*.py"))}
EXPERIMENTS = {
    name: experiment
    for module in _MODULES.values()
    for name, experiment in vars(module).items()
    if isinstance(experiment, Experiment)
}
overview, paper_pages = _MODULES["overview"], _MODULES["paper_pages"]
# A marker, and the table below it.
_SHOWN = re.compile(r"(<!-- (results/[\w/]+\.md|methods), table (\d+) -->\n)((?:\|.*\n)*)")
_TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
DOCUMENTS = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if _SHOWN.search(path.read_text(encoding="utf-8"))
]
# Where the cell of a method stands that people find in run_configs/fashion_mnist: the experiment,
# how the names of its cells begin, and how the file's name ends. A later one is preferred.
_EXAMPLES = (
    ("fair_field", "high_global", "high"),
    ("shared_head", "high_pflego_shared_head", "high"),
    ("pgfed_table1", "fashion_mnist_25_", "dirichlet"),
    ("more_methods", "fashion_mnist_high_", "high"),
    ("table1", "fashion_mnist_high_", "high"),
)


def refreshed(document: pathlib.Path) -> str:
    """Returns the text of a document with the current tables below its markers."""

    def table(match):
        marker, path, number, _ = match.groups()
        if path == "methods":
            tables = method_pages.tables(ROOT)
        else:
            tables = _TABLE.findall((ROOT / path).read_text(encoding="utf-8"))
        if not 1 <= int(number) <= len(tables):
            raise ValueError(
                f"{document.name} must name one of the {len(tables)} tables of {path}; "
                f"got table {number}. Correct the marker above that table."
            )
        return marker + tables[int(number) - 1]

    return _SHOWN.sub(table, document.read_text(encoding="utf-8"))


def flag_file(experiment: str, cell: Cell, rows: Sequence[dict], path: str) -> str:
    """Returns the flag file of a cell at a path, from the rows of its experiment's runs."""
    runs = [row for row in rows if row["run"] == cell.name]
    table = f"results/{experiment}/{store.RUNS}"
    lines = [
        f"# {EXPERIMENTS[experiment].title}: {cell.name}.",
        f"#   python -m tf_pflego.main --flagfile={path} --output_dir=DIR",
    ]
    if runs:
        lines += [
            f"# Measured with {texts.counted(len(runs), 'seed')} ({table}):",
            f"#   {paper_pages.seconds(runs)} seconds per round",
            f"#   {paper_pages.accuracy(runs, store.PARTICIPANTS)} percent test accuracy of the "
            "participants, mean of the last ten rounds",
            f"#   {paper_pages.accuracy(runs, store.SERVED)} percent of all clients as served",
        ]
    else:
        lines.append(f"# Not measured yet: {table} has no run of it.")
    if cell.paper is not None:
        lines.append(f"#   {cell.paper:.2f} percent in the paper")
    lines.append("# Written by tools/documents.py.")
    return "\n".join(lines) + "\n" + store.lines_of(cell.settings)


def flag_files() -> dict[pathlib.Path, str]:
    """Returns the flag files of run_configs/fashion_mnist, one per method of the experiments."""
    files = {}
    for experiment, start, kind in _EXAMPLES:
        rows = store.runs_in(RESULTS / experiment / store.RUNS)
        for cell in EXPERIMENTS[experiment].planned:
            if cell.name.startswith(start):
                path = pathlib.Path("run_configs/fashion_mnist") / f"{cell.algorithm}_{kind}.flags"
                text = flag_file(experiment, cell, rows, str(path))
                files[cell.algorithm] = ROOT / path, text
    return dict(files.values())


def main() -> None:
    """Writes them all."""
    files = {RESULTS / name: content for name, content in overview.pages(RESULTS).items()}
    files |= {path: text.encode() for path, text in flag_files().items()}
    _write(files)
    _write({document: refreshed(document).encode() for document in DOCUMENTS})  # They name those.


def _write(files):
    with durable.batch() as batch:
        for path, content in files.items():
            with batch.open(path) as stream:
                stream.write(content)


if __name__ == "__main__":
    main()
