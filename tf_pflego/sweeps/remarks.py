"""Sentences about a sweep: the best method, how sure its lead is, and the comparison's gaps."""

import dataclasses
import math
import statistics
from collections.abc import Mapping

from tf_pflego import algorithms
from tf_pflego.core.statistic_names import Shown, significant
from tf_pflego.reports.metrics import listed
from tf_pflego.sweeps import choice
from tf_pflego.sweeps.experiments import Cell, words
from tf_pflego.sweeps.stored_sweep import StoredSweep
from tf_pflego.system import texts

_MOST_NAMED = 6


def verdict(first: Shown, tests: Mapping[str, Mapping[int, float]]) -> str:
    """Returns a sentence on the best method, from {method: {seed: statistic}}.

    The next best is compared with it seed by seed, as in the tables. A lead of less than two
    standard errors is called none.
    """
    unit = " %" * first.is_share

    def written(number):
        return f"{number:.2f}" if first.is_share else significant(number, 3)

    means = {
        method: statistics.mean(of_seeds.values())
        for method, of_seeds in tests.items()
        if of_seeds and all(map(math.isfinite, of_seeds.values()))
    }
    if not means:
        return ""
    best, *others = sorted(means, key=lambda method: -first.sign * means[method])
    if not others:
        return f"{best} has a test {first.title} of {written(means[best])}{unit}."
    other = others[0]
    seeds = sorted(tests[best].keys() & tests[other].keys())
    leads = [first.sign * (tests[best][seed] - tests[other][seed]) for seed in seeds]
    sentence = f"{best} has the best test {first.title}, {written(means[best])}{unit}"
    if len(leads) < 2:
        behind = written(abs(means[best] - means[other])) + " points" * first.is_share
        return (
            f"{sentence}, and {other} is next, {behind} behind; one seed cannot say how sure it is."
        )
    lead, error = statistics.mean(leads), statistics.stdev(leads) / math.sqrt(len(leads))
    by = f"{written(lead)} ± {written(error)}" + " points" * first.is_share
    if lead < 2 * error:
        return f"{sentence}, but is level with {other}: {by} ahead over {len(leads)} seeds."
    return f"{sentence}, and {other} is next, {by} behind over {len(leads)} seeds."


def warnings(sweep: StoredSweep) -> list[str]:
    """Returns sentences about faults and gaps of a comparison."""
    sentences, missing, chosen = [], [], sweep.best()
    at_edge: dict[tuple[str, str], list[str]] = {}
    left: dict[str, list[str]] = {}
    for cell in sweep.cells:
        condition = cell.condition_in_words
        name = f"{cell.label} ({condition})" if condition else cell.label
        if not sweep.runs_of(cell):
            missing.append(name)
        for rate in rates_left(cell):
            left.setdefault(rate, []).append(cell.settings["algorithm"])
        settings = chosen.get(cell.name, {})
        for setting, edge in choice.at_edge(cell, settings).items() if settings else ():
            at_edge.setdefault((setting, edge), []).append(f"{name}: {words(settings[setting])}")
    for (setting, edge), names in at_edge.items():
        sentences.append(
            f"A better {setting} may lie beyond the {edge} that was tried, which was chosen for "
            f"{listed(names)}."
        )
    if left:
        rates = [f"{rate} (of {listed(dict.fromkeys(names))})" for rate, names in left.items()]
        sentences.append(
            f"Beside rates that were given or chosen, some are left at a default: {listed(rates)}."
        )
    if missing:
        few = listed(missing) if len(missing) <= _MOST_NAMED else f"{len(missing)} cells"
        sentences.insert(
            0,
            f"Of {texts.counted(len(sweep.cells), 'cell')}, {few} have no run yet: they are not "
            "in the tables.",
        )
    return sentences


def rates_left(cell: Cell) -> list[str]:
    """Returns the rates that a cell leaves at their defaults, if it has another.

    A server that is not adaptive takes the mean of what clients send, by a rate of 1, which is no
    default that one would tune.
    """
    method = cell.settings["algorithm"]
    if method not in algorithms.REGISTRY:  # It is a user's, whose file may be gone.
        return []
    fields = {one.name: one for one in dataclasses.fields(algorithms.REGISTRY[method][0])}
    given = cell.settings.keys() | cell.choices.keys()
    rates = {name for name in fields if name.endswith("_learning_rate")}
    if "server_optimizer" in fields:
        default = fields["server_optimizer"].default
        if cell.settings.get("server_optimizer", default) in ("none", "sgd", "momentum"):
            rates -= {"server_learning_rate"}
    return [f"{name} {fields[name].default}" for name in sorted(rates - given) if rates & given]
