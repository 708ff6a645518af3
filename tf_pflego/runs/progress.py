"""What a run shows while it trains, and the table at its end."""

import time
from typing import Any

import tqdm

from tf_pflego.runs.callbacks import Callback
from tf_pflego.runs.client_table import Columns, worst_rows
from tf_pflego.simulation.records import STANDARD_ERROR
from tf_pflego.system import terminal

_WIDE = "round {n_fmt}/{total_fmt} |{bar}| {desc} [{elapsed}, {remaining} left]"
_NARROW = "round {n_fmt}/{total_fmt}, {desc} [{remaining} left]"
_LEAST_COLUMNS_WITH_BAR = 72
_VALIDATION = "validation_accuracy/client_mean"
_ERROR = f"test_accuracy/client_mean/{STANDARD_ERROR}"


class Progress(Callback):
    """Shows a bar in terminals and notebooks, elsewhere a line for each evaluated round.

    The bar comes with the first finished round; until then `system.terminal.doing` has the line.
    """

    def __init__(self, num_rounds: int):
        self._num_rounds = num_rounds
        self._started = time.time()
        self._bar: tqdm.tqdm | None = None

    def after_round(self, simulation, record):
        """Shows a finished round."""
        text = None
        if "test_accuracy/client_mean" in record:
            text = f"accuracy {record['test_accuracy/client_mean']:.4f}"
            if _ERROR in record:
                text += f" ± {record[_ERROR]:.4f}"
            if _VALIDATION in record:
                text += f", validation {record[_VALIDATION]:.4f}"
        # With a validation accuracy, the loss too would leave a bar no room.
        if "train_loss" in record and _VALIDATION not in record:
            text = f"loss {record['train_loss']:.4f}, {text}"
        columns = terminal.stream_of_progress().columns()
        if columns is not None and not terminal.is_quiet():
            self._show_bar(columns, text, record["round"])
        elif text:
            seconds = time.time() - self._started
            terminal.note(f"round {record['round']}/{self._num_rounds}  {text}  {seconds:.1f} s")

    def _show_bar(self, columns, text, number):
        is_new = self._bar is None
        if self._bar is None:
            terminal.done()
            # Without a delay it would show itself once before it knows what to show. The first
            # round, which is traced, does not count for the time that is left.
            self._bar = tqdm.tqdm(
                total=self._num_rounds,
                initial=number,
                file=terminal.stream_of_progress(),
                dynamic_ncols=True,
                delay=1e-9,
            )
            self._bar.start_t = self._started
        # The terminal may have become wider or narrower.
        self._bar.bar_format = _WIDE if columns >= _LEAST_COLUMNS_WITH_BAR else _NARROW
        if text:
            self._bar.set_description_str(text, refresh=False)
        if is_new:
            self._bar.refresh()
        else:
            # A run that has lost a shard goes back to the round of a checkpoint.
            self._bar.update(number - self._bar.n)

    def close(self) -> None:
        """Closes the bar, if there is one, so that the terminal is left in order."""
        if self._bar is not None:
            self._bar.close()


def result_table(summary: dict[str, Any], title: str, clients: Columns) -> str:
    """Returns the table that a run ends with, in at most 60 columns.

    `clients` are the columns of clients.csv.
    """
    worst, number, rows_of_worst = worst_rows(clients)
    tested = len(clients["client"])
    whom = "sampled clients" if _ERROR in summary else "all clients"
    of_worst = (f"    worst tenth, {number} of {tested}", f"{worst:.4f}", "")
    rows = [("test accuracy", "last round", "mean of last 10")]
    rows += _accuracy_rows(summary, "test_accuracy", whom, [of_worst])
    if _VALIDATION in summary:
        rows.append(("validation accuracy", "", ""))
        rows += _accuracy_rows(summary, "validation_accuracy", whom)
    loss = summary["train_loss"]  # None in the summary of an earlier run if it was not finite.
    rows.append((f"training loss, {whom}", "-" if loss is None else f"{loss:.4f}", ""))
    rows.append(("seconds per round (median)", f"{summary['seconds_per_round/median']:.3f}", ""))
    for way in ("down", "up"):
        rows.append((f"megabytes {way}, all rounds", f"{summary[f'bytes_{way}'] / 1e6:.1f}", ""))
    lines = _aligned(rows, "<>>")
    worst = _aligned(
        [("served worst", "classes", "train", "test", "accuracy"), *rows_of_worst], "<<>>>"
    )
    rule = "-" * max(map(len, [*lines, *worst]))
    return "\n".join([title, rule, *lines, rule, *worst, rule])


def _accuracy_rows(summary, accuracy, whom, of_all=()):
    """Returns the rows of test_accuracy or validation_accuracy; `of_all` ends those of `whom`."""
    rows = []
    for who, label, more in (
        (accuracy, f"{whom} as served now", of_all),
        (f"participant_{accuracy}", "participants after training", ()),
    ):
        if f"{who}/client_mean" not in summary:
            continue
        rows.append((f"  {label}", "", ""))
        for mean in ("client", "example"):
            name = f"{who}/{mean}_mean"
            values = (f"{summary[name]:.4f}", f"{summary[f'{name}/last10']:.4f}")
            rows.append((f"    mean per {mean}", *values))
            if f"{name}/{STANDARD_ERROR}" in summary:
                last, of_ten = (
                    f"{summary[f'{name}/{STANDARD_ERROR}{end}']:.4f}" for end in ("", "/last10")
                )
                rows.append(("      standard error", last, of_ten))
            rows.extend(
                (f"      {group.replace('_', ' ')} clients", *values)
                for group, *values in _groups(summary, name)
            )
        rows += more
    name = f"new_clients/{accuracy}/client_mean"
    if f"{name}/after" in summary:
        rows.append(("  new clients before training", f"{summary[f'{name}/before']:.4f}", ""))
        rows.append(("  new clients after training", f"{summary[f'{name}/after']:.4f}", ""))
    return rows


def _groups(summary, name):
    """Yields (group, last value, mean of the last ten) of the means of a metric over groups."""
    for key in summary:
        group, *rest = key.removeprefix(f"{name}/").split("/")
        if key.startswith(f"{name}/") and rest == ["last10"] and group != STANDARD_ERROR:
            yield group, f"{summary[f'{name}/{group}']:.4f}", f"{summary[key]:.4f}"


def _aligned(rows, sides):
    """Returns lines of columns that are as wide as need be, flush left (<) or right (>)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
