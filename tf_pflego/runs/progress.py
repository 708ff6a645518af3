"""The progress of a run while it trains, and the table at its end."""

import logging
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tqdm

from tf_pflego.core.statistic_names import Metric, first_of, significant
from tf_pflego.runs import decline
from tf_pflego.runs.callbacks import Callback
from tf_pflego.runs.client_table import Columns, worst_rows
from tf_pflego.simulation.records import (
    CLIPPED,
    DELTA,
    EPSILON,
    EPSILON_UNAMPLIFIED,
    SIGNAL,
    STANDARD_ERROR,
    trust,
)
from tf_pflego.system import log, texts

_WIDE = "round {n_fmt}/{total_fmt} |{bar}| {desc} [{elapsed}, {remaining} left]"
_NARROW = "round {n_fmt}/{total_fmt}, {desc} [{remaining} left]"
_LEAST_COLUMNS_WITH_BAR = 72
# Named for accuracy; the same metrics of the first statistic are shown.
_TEST, _VALIDATION = "test_accuracy/client_mean", "validation_accuracy/client_mean"
_ERROR = f"{_TEST}/{STANDARD_ERROR}"
_FEW = 0.02  # A bound that cuts a smaller share of the uploads hardly bounds them.


class Progress(Callback):
    """Logs each round, and shows a bar in notebooks and terminals."""

    def __init__(self, num_rounds: int):
        self._num_rounds = num_rounds
        self._started = time.time()
        self._bar: tqdm.tqdm | None = None

    def on_round_end(self, simulation, record):
        """Shows a finished round."""
        text, first = "", first_of(record)
        test, error, validation = map(first.metric, (_TEST, _ERROR, _VALIDATION))
        if test in record:
            text = f"{first.title} {first.written(record[test])}"
            if error in record:
                text += f" ± {first.written(record[error])}"
            if validation in record:
                text += f", validation {first.written(record[validation])}"
            if record.get(EPSILON) is not None:
                text += f", epsilon {significant(record[EPSILON], 3)}"
        # With either of these, the loss too would leave a bar no room.
        if "train_loss" in record and not {validation, EPSILON} & record.keys():
            text = f"loss {first.written(record['train_loss'])}, {text}"
        line = f"round {record['round']}/{self._num_rounds}  {text}"
        line += f"  {time.time() - self._started:.1f} s"
        log.ROUNDS.log(logging.INFO if text else logging.DEBUG, line)
        if not log.is_quiet() and (stream := _stream_of_bars()) is not None:
            self._show_bar(stream, text, record["round"])

    def _show_bar(self, stream, text, number):
        is_new = self._bar is None
        if self._bar is None:
            # Without a delay it would show itself once before it knows what to show. The first
            # round, which is traced, does not count for the time that is left.
            self._bar = tqdm.tqdm(
                total=self._num_rounds, initial=number, file=stream, dynamic_ncols=True, delay=1e-9
            )
            self._bar.start_t = self._started
        # The terminal may have become wider or narrower; a notebook is wide.
        columns = getattr(stream, "columns", lambda: None)() or _LEAST_COLUMNS_WITH_BAR
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


def _stream_of_bars() -> Any:
    """Returns the stream for bars: a program's, or a notebook's output; else None."""
    kernel = sys.modules.get("ipykernel.iostream")
    if kernel is not None and isinstance(sys.stdout, kernel.OutStream):
        return sys.stdout  # A notebook shows what is on standard error on red.
    return log.bars


def say_decline(records: Sequence[Mapping[str, Any]]) -> None:
    """Logs that a run got worse after its best rounds, if it did."""
    names = dict.fromkeys(name for record in records for name in record)
    if said := decline.remark({name: [one.get(name) for one in records] for name in names}):
        log.info(said)


def result_table(summary: dict[str, Any], title: str, clients: Columns) -> str:
    """Returns the final table of a run, in at most 60 columns.

    `clients` are the columns of clients.csv.
    """
    first = first_of(summary)
    worst, number, rows_of_worst = worst_rows(clients, first)
    tested = len(clients["client"])
    whom = "sampled clients" if first.metric(_ERROR) in summary else "all clients"
    of_worst = (f"    worst tenth, {number} of {tested}", first.written(worst), "")
    rows = [(f"test {first.title}", "last round", "mean of last 10")]
    rows += _rows_of(summary, first, "test", whom, [of_worst])
    if first.metric(_VALIDATION) in summary:
        rows.append((f"validation {first.title}", "", ""))
        rows += _rows_of(summary, first, "validation", whom)
    rows.append((f"training loss, {whom}", first.written(summary["train_loss"]), ""))
    if summary.get(EPSILON) is not None:
        names = {
            EPSILON: "epsilon of differential privacy",
            EPSILON_UNAMPLIFIED: "    to who knows the draws",
        }
        rows += [(text, significant(summary[name]), "") for name, text in names.items()]
        rows.append(("    delta", f"{summary[DELTA]:g}", ""))
    rows.append(("seconds per round (median)", f"{summary['seconds_per_round/median']:.3f}", ""))
    for way in ("down", "up"):
        rows.append((f"megabytes {way}, all rounds", f"{summary[f'bytes_{way}'] / 1e6:.1f}", ""))
    lines = texts.aligned(rows, "<>>")
    sides = ["<" if head in ("served worst", "classes") else ">" for head in rows_of_worst[0]]
    served_worst = texts.aligned(rows_of_worst, "".join(sides))
    rule = "-" * max(map(len, [*lines, *served_worst]))
    return "\n".join([title, rule, *lines, rule, *served_worst, rule])


def remarks_on_privacy(summary: Mapping[str, Any], mechanism: str) -> list[str]:
    """Returns the trusted parties of a private run, and warnings about its noise or bound."""
    if summary.get(EPSILON) is None:
        return []
    remarks = [trust(mechanism)]
    if summary.get(SIGNAL, 1) < 1:
        remarks.append(
            "the noise was larger than what it hides: the last sum had "
            f"{summary[SIGNAL]:.2g} times the norm of its noise. More clients per round, or a "
            "larger epsilon, help."
        )
    clipped = summary.get(CLIPPED)
    if clipped is not None and not _FEW < clipped < 1 - _FEW:
        few = clipped <= _FEW
        remarks.append(
            f"the bound cut {100 * clipped:.0f} % of the last uploads: "
            f"{'lower' if few else 'raise'} `clip_norm`, with which the noise "
            f"{'falls' if few else 'grows'}."
        )
    return remarks


def _rows_of(summary, first, split, whom, of_all=()):
    """Returns the rows of the test or validation examples. `of_all` ends the rows on `whom`."""
    rows, served = [], Metric(split, first.name, "client")
    for whose, label, more in (
        ("", f"{whom} as served now", of_all),
        ("participant_", "participants after training", ()),
    ):
        if str(served._replace(whose=whose)) not in summary:
            continue
        rows.append((f"  {label}", "", ""))
        for mean in ("client", "example"):
            metric = served._replace(whose=whose, mean=mean)
            rows.append((f"    mean per {mean}", *_last_and_mean(summary, first, metric)))
            alike = (one for one in map(Metric.read, summary) if one is not None)
            parts = [one.group for one in alike if one == metric._replace(group=one.group)]
            for part in sorted(filter(None, parts), key=lambda part: part != STANDARD_ERROR):
                label = f"      {part.replace('_', ' ')}{' clients' * (part != STANDARD_ERROR)}"
                of_part = metric._replace(group=part)
                rows.append((label, *_last_and_mean(summary, first, of_part)))
        rows += more
    name = str(served._replace(model="new_clients"))
    if f"{name}/after" in summary:
        for when in ("before", "after"):
            value = first.written(summary[f"{name}/{when}"])
            rows.append((f"  new clients {when} training", value, ""))
    return rows


def _last_and_mean(summary, first, metric):
    return first.written(summary[f"{metric}"]), first.written(summary[f"{metric}/last10"])
