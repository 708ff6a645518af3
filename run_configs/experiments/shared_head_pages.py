"""The tables of PFLEGO with a shared head."""

import pathlib
import re
import statistics

import paper_pages
from paper_figures import image_of
from paper_pages import DEGREES, PERCENT, at, crossed, fixed, markdown, page, seconds, table

from tf_pflego.reports import figures
from tf_pflego.sweeps import Sweep, store

# The methods that are compared with others; the last is from `table1`.
_OURS = "pflego_shared_head", "pflego"
_OF_GROUP = re.compile(r"test_accuracy/client_mean/(\w+)/last10")


def tuning(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_tuning`."""
    settings = validation_of_settings(sweep)
    columns = [_column(name, name) for name in next(iter(settings.values()))]
    columns.append(("mean", lambda values: f"{statistics.mean(values.values()):.2f}"))
    lines = table("setting", settings.items(), *columns)
    return page(sweep.title, "shared_head_tuning", lines)


def _column(head, key, form=".2f"):
    return head, lambda values: fixed(values.get(key), form)


def validation_of_settings(sweep: Sweep) -> dict[str, dict[str, float]]:
    """Returns for each setting its accuracies in percent, by federation and group.

    Settings whose runs are not all there are left out.
    """
    cells = {cell.name: cell.settings for cell in sweep.cells}
    settings: dict[str, dict[str, float]] = {}
    for row in sweep.rows:
        degree, share = (cells[row["run"]][key] for key in ("personalization", "permuted_fraction"))
        values = settings.setdefault(row["run"].removeprefix(f"{degree}_{share:g}_"), {})
        for group in ("/permuted", "/not_permuted") if 0 < share < 1 else ("",):
            words = group.replace("/", ", ").replace("_", " ")
            value = row[f"validation_accuracy/client_mean{group}/last10"]
            values[f"{DEGREES[degree]}, {share:.0%}{words}"] = PERCENT * value
    whole = max(map(len, settings.values()))
    return {setting: values for setting, values in settings.items() if len(values) == whole}


def field_tuning(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_field_tuning`."""
    methods = validation_of_rates(sweep)
    rates = dict.fromkeys(rate for values in methods.values() for rate in values)
    columns = (_column(f"rate {rate:g}", rate) for rate in rates)
    return page(sweep.title, "shared_head_field_tuning", table("method", methods.items(), *columns))


def validation_of_rates(sweep: Sweep) -> dict[str, dict[float, float]]:
    """Returns {method: {rate: validation accuracy in percent}}."""
    methods: dict[str, dict[float, float]] = {}
    for row in sweep.rows:
        method, rate = row["run"].removeprefix("medium_").rsplit("_", 1)
        value = PERCENT * row["validation_accuracy/client_mean/last10"]
        methods.setdefault(method, {})[float(rate)] = value
    return methods


def on_own_labels(results: pathlib.Path, *methods: str) -> list[dict]:
    """Returns the runs of `table1` on the same clients as `shared_head`, named alike."""
    return [
        row | {"run": f"{row['personalization']}_{row['algorithm']}"}
        for row in store.runs_in(results / "table1" / store.RUNS)
        if row["dataset"] == "fashion_mnist" and (not methods or row["algorithm"] in methods)
    ]


def by_method(rows: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """Returns {method: {degree: runs}}, of which the method and its variants are the first."""
    methods = crossed(rows, lambda row: row["run"].split("_", 1)[::-1])
    ours = {method: methods.pop(method) for method in _OURS if method in methods}
    return ours | methods


def _seeds(runs):
    return ", ".join(str(len(runs.get(degree, []))) for degree in DEGREES)


def comparison(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head`: as served, and participants."""
    methods, parts = by_method([*sweep.rows, *on_own_labels(sweep.path.parent, "pflego")]), []
    for column in ("as served", "participants"):
        columns = [at(degree, column, words) for degree, words in DEGREES.items()]
        columns += [("seeds", _seeds), ("seconds a round", _seconds)]
        parts += [f"## {column.capitalize()}", table("method", methods.items(), *columns)]
    parts += ["## Less methods with the same server", "As served, in points, seed by seed:"]
    return page(sweep.title, "shared_head", *parts, _by_seed(methods))


def headline(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `headline`: as served, and the shared head less the others by seed."""
    methods = by_method(sweep.rows)
    columns = [at(degree, "as served", words) for degree, words in DEGREES.items()]
    columns += [("seeds", _seeds), ("seconds a round", _seconds)]
    parts = [table("method", methods.items(), *columns)]
    parts += ["## The shared head less the others", "As served, in points, seed by seed:"]
    others = {name: runs for name, runs in methods.items() if name != _OURS[0]}
    columns = [(words, _lead(methods, degree)) for degree, words in DEGREES.items()]
    return page(sweep.title, "headline", *parts, table("method", others.items(), *columns))


def _lead(methods, degree):
    """Returns the cell of a mean difference, and the mean's standard error over seeds."""

    def cell(runs):
        both = pairs(methods[_OURS[0]].get(degree, []), runs.get(degree, [])).values()
        return paper_pages.lead([shared - other for shared, other in both])

    return cell


def _seconds(runs):
    return seconds([row for rows in runs.values() for row in rows])


def _by_seed(methods):
    """Returns the table of how far one method is ahead of others, by seed and degree."""
    changes: dict[str, dict[str, float]] = {}
    for name in (name for name in methods if name.endswith("_muon")):
        for degree in DEGREES:
            runs = (methods[one].get(degree, []) for one in (_OURS[0], name))
            for seed, (shared, other) in pairs(*runs).items():
                changes.setdefault(f"{name}, {seed}", {})[degree] = shared - other
    columns = (_column(words, degree, "+.2f") for degree, words in DEGREES.items())
    return table("method, seed", changes.items(), *columns)


def pairs(runs: list[dict], others: list[dict], key: str = store.SERVED) -> dict[int, tuple]:
    """Returns {seed: (percent of the runs, percent of the others)}, of seeds that both have."""
    one, other = ({row["seed"]: PERCENT * row[key] for row in rows} for rows in (runs, others))
    return {seed: (one[seed], other[seed]) for seed in one if seed in other}


def ablation(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_ablation`; the method as it is comes from `shared_head`."""
    results = sweep.path.parent
    as_it_is = by_method(store.runs_in(results / "shared_head" / store.RUNS))
    methods = {name: runs for name, runs in as_it_is.items() if name in _OURS}
    methods |= by_method([*on_own_labels(results, "pflego"), *sweep.rows])
    whole = methods.get(_OURS[0], {})

    def change(degree):
        def cell(runs):
            both = pairs(runs.get(degree, []), whole.get(degree, [])).values()
            if not both:
                return ""
            mean, of_whole = map(statistics.mean, zip(*both, strict=True))
            return f"{mean:.2f}" + f" ({mean - of_whole:+.2f})" * (runs is not whole)

        return cell

    columns = ((words, change(degree)) for degree, words in DEGREES.items())
    lines = table("method", methods.items(), *columns, ("seeds", _seeds))
    return page(sweep.title, "shared_head_ablation", lines)


def conflicts(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page of `shared_head_conflicts`."""
    lines = [
        [*key, f"{shared:.2f}", f"{plain:.2f}", f"{shared - plain:+.2f}", seeds]
        for key, (shared, plain, seeds) in groups_in_conflict(sweep).items()
    ]
    head = ["clients", "group", "shared", "plain", "difference", "seeds"]
    return page(sweep.title, "shared_head_conflicts", markdown(head, lines))


def groups_in_conflict(sweep: Sweep) -> dict[tuple[str, str], tuple[float, float, int]]:
    """Returns {(situation, group): (percent with a shared head, of plain PFLEGO, seeds)}."""

    def place(row):
        kind = "shared_head" if row["run"].endswith("_shared_head") else "plain"
        return row["run"].removesuffix(f"_{kind}").replace("_", " "), kind

    means = {}
    for situation, kinds in crossed(sweep.rows, place).items():
        shared, plain = (kinds.get(kind, []) for kind in ("shared_head", "plain"))
        known = (key for key, value in (*shared, *plain)[0].items() if value is not None)
        groups = {match[1]: match[0] for match in map(_OF_GROUP.fullmatch, known) if match}
        for group, key in (groups or {"all": store.SERVED}).items():
            if both := pairs(shared, plain, key).values():
                accuracies = map(statistics.mean, zip(*both, strict=True))
                means[situation, group.replace("_", " ")] = *accuracies, len(both)
    return means


def passes(sweep: Sweep) -> dict[str, bytes]:
    """Returns the page and the figure of `shared_head_passes`."""
    methods = crossed(sweep.rows, lambda row: row["run"].rsplit("_", 1))
    heads = {"as served": "as served", "megabytes a round, both ways": _megabytes}
    counts, parts = ("1", "2", "5", "10"), []
    for words, cell in heads.items():
        columns = [at(count, cell, count) for count in counts]
        parts += [f"## {words.capitalize()}", table("method", methods.items(), *columns)]
    figure, (axis,) = figures.new((8.0, 6.0))
    for number, (method, runs) in enumerate(methods.items()):
        means = {
            int(count): statistics.mean(PERCENT * run[store.SERVED] for run in runs[count])
            for count in counts
            if count in runs
        }
        axis.plot(means.keys(), means.values(), label=method, **figures.look(number))
    axis.set_xlabel("passes in a round; in parts: exchanges")
    axis.set_ylabel("accuracy as served, percent")
    figures.finish(figure, sweep.title, list(methods))
    return page(sweep.title, "shared_head_passes", *parts) | {"passes.png": image_of(figure)}


def _megabytes(runs):
    return f"{paper_pages.bytes_of_round(runs) / 1e6:.1f}" if runs else ""
