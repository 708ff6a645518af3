"""What a run shows while it trains, and the table at its end."""

import time
from typing import Any

import tqdm

from tf_pflego import console


class Progress:
    """Shows a bar where lines can be drawn again, else a line for each evaluated round.

    It is on standard error. Terminals and notebooks show a bar.

    Args:
      num_rounds: T.
      done: How many rounds are done already.
    """

    def __init__(self, num_rounds: int, done: int = 0):
        self._num_rounds = num_rounds
        self._started = time.monotonic()
        self._bar = None
        stream = console.STDERR
        if stream.redraws_lines():
            shape = "round {n_fmt}/{total_fmt} |{bar}| {desc} [{elapsed} elapsed, {remaining} left]"
            self._bar = tqdm.tqdm(
                total=num_rounds,
                initial=done,
                file=stream,
                bar_format=shape,
                dynamic_ncols=True,
            )

    def add_round(self, record: dict[str, Any]) -> None:
        """Shows a finished round."""
        text = None
        if "test_accuracy/client_mean" in record:
            text = f"accuracy {record['test_accuracy/client_mean']:.4f}"
        if "train_loss" in record:
            text = f"loss {record['train_loss']:.4f}, {text}"
        if self._bar is not None:
            if text:
                self._bar.set_description_str(text, refresh=False)
            self._bar.update()
        elif text:
            seconds = time.monotonic() - self._started
            console.say(f"round {record['round']}/{self._num_rounds}  {text}  {seconds:.1f} s")

    def close(self) -> None:
        """Closes the bar, if there is one, so that the terminal is left in order."""
        if self._bar is not None:
            self._bar.close()


def result_table(summary: dict[str, Any], title: str) -> str:
    """Returns the table that a run ends with.

    Args:
      summary: What `training.summarize` returns.
      title: The line above it.
    """
    rows = [("test accuracy", "last round", "mean of last 10")]
    for who, label in (
        ("test_accuracy", "all clients as served now"),
        ("participant_test_accuracy", "participants after training"),
    ):
        for mean in ("client", "example"):
            name = f"{who}/{mean}_mean"
            if name in summary:
                values = (f"{summary[name]:.4f}", f"{summary[f'{name}/last10']:.4f}")
                rows.append((f"  {label}, mean per {mean}", *values))
    name = "new_clients/test_accuracy/client_mean"
    if f"{name}/after" in summary:
        values = f"{summary[f'{name}/before']:.4f}, {summary[f'{name}/after']:.4f}"
        rows.append(("  new clients before and after training", values, ""))
    loss = summary["train_loss"]  # None in the summary of an earlier run if it was not finite.
    rows.append(("training loss, all clients", "-" if loss is None else f"{loss:.4f}", ""))
    rows.append(("seconds per round (median)", f"{summary['seconds_per_round/median']:.3f}", ""))
    rows.append(
        (
            "megabytes down, up (all rounds)",
            f"{summary['bytes_down'] / 1e6:.1f}, {summary['bytes_up'] / 1e6:.1f}",
            "",
        )
    )
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]
    rule = "-" * max(map(len, lines))
    return "\n".join([title, rule, *lines, rule])
