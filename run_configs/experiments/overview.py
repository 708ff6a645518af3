"""The pages of no sweep alone: costs and accuracies, times, PFLlib, and a trained network."""

import itertools
import json
import pathlib
import re
import statistics

from paper_pages import (
    DEGREES,
    PAGE,
    PERCENT,
    accuracy,
    bytes_of_round,
    crossed,
    fixed,
    grouped,
    markdown,
    numbers_of,
    page,
    seconds,
    table,
)
from shared_head_pages import by_method, on_own_labels, pairs

from tf_pflego.sweeps import store

_MEASURED = re.compile(r"methods/\w+/(\w+)/over_pflego")
_SHARED = "pflego_shared_head"
# The runs of `headline` on shared labels that the first table shows, by what it calls them.
_WITH_LABELS = {
    _SHARED: f"`{_SHARED}`",
    "fedavg_muon": "`fedavg` with mask and Muon",
    "local": "`local` with mask",
}
# The pages of methods on several bodies: title, and the experiments with words for the bodies.
_BODIES = {
    "trained_body": (
        "A trained network, and from scratch",
        {"trained_body": "trained, frozen", "trained_body_scratch": "from scratch"},
    ),
    "trained_heads": (
        "Heads on a trained network",
        {"trained_heads": "features as they are", "trained_heads_scaled": "features normalised"},
    ),
    "adapted_body": (
        "A trained network that goes on learning",
        {"adapted_body_frozen": "frozen", "adapted_body_lora": "adapters in the last block"},
    ),
}
# The tasks on texts, with what they are measured by, and the ends of their experiments' names.
_TEXTS = {
    "films": ("Films that 943 users rate", "RMSE", "root_mean_squared_error", 1, ".4f"),
    "speeches": ("Speeches of 41 presidents", "accuracy, %", "accuracy", PERCENT, ".2f"),
}
_ADAPTERS = {"": "none", "_lora": "shared", "_own_lora": "own"}


def pages(results: pathlib.Path) -> dict[str, bytes]:
    """Returns the pages by the names of their files, from the directory of the results."""
    report = json.loads((results / "benchmark.json").read_text(encoding="utf-8"))
    tables = {
        "overview": ("Cost and accuracy", _costs(results, report)),
        "round_times": ("Seconds per round", round_times(report)),
        "local_speed": ("PGFed paper, Table 7", _speeds(report)),
        "frozen_rounds": ("Rounds on the features of a frozen network", frozen_rounds(report)),
        "compiled": ("Compiled rounds and rounds one by one", compiled(report)),
        **{name: (title, _bodies(results, bodies)) for name, (title, bodies) in _BODIES.items()},
        "real_texts": ("Texts of real people", _texts(results)),
        "pfllib": ("Beside PFLlib", _differences(store.read(results / "pfllib.csv"))),
    }
    cores = str(report["cores"]).encode()
    exports = json.loads((results / "exports.json").read_text(encoding="utf-8"))
    return {"exports.md": _exports(exports).encode()} | {
        f"{name}.md": page(title, name, table)[PAGE].replace(b"CORES", cores)
        for name, (title, table) in tables.items()
    }


def _costs(results, report):
    """Returns the first table of README.md."""
    shared = by_method(store.runs_in(results / "headline" / store.RUNS))
    own = by_method(on_own_labels(results))

    def over_pflego(engine):
        places = (f"shared_head/{degree}/{engine}/over_pflego" for degree in ("high", "no"))
        return statistics.mean(report[place] for place in places)

    def over_shared_head(method):
        """Returns the median ratio of the seconds of runs with the same clients and seed."""
        both = ((shared[method][degree], shared[_SHARED][degree]) for degree in DEGREES)
        timed = itertools.chain.from_iterable(pairs(*runs, store.SECONDS).values() for runs in both)
        return statistics.median(one / other for one, other in timed)

    def line(title, labels, time, runs):
        served = (accuracy(runs[degree], store.SERVED, ".1f") for degree in DEGREES)
        seeds = max(len(runs[degree]) for degree in DEGREES)
        return [title, labels, f"{time:.1f}", *served, seeds]

    lines = [line("**`pflego`**", "own", 1, own.pop("pflego"))]
    for method, title in _WITH_LABELS.items():
        time = over_pflego("in_process") * over_shared_head(method)
        time = over_pflego("tff") if method == _SHARED else time
        lines.append(line(title, "shared", time, shared[method]))
    for method, runs in own.items():
        time = report[f"methods/fashion_mnist/{method}/over_pflego"]
        lines.append(line(f"`{method}`", "own", time, runs))
    classes = "2 classes", "5 classes", "10 classes"
    return markdown(["method", "labels", "time of a round", *classes, "seeds"], lines)


def round_times(report: dict) -> str:
    """Returns the table of the seconds of a round, from the part `methods` of the benchmark."""
    of_paper = {row["algorithm"]: row.get("seconds") for row in numbers_of("pflego")}
    lines = []
    measured = (_MEASURED.fullmatch(key) for key in report)
    for method in dict.fromkeys(match[1] for match in measured if match):
        line = [f"`{method}`"]
        for dataset in ("fashion_mnist", "omniglot"):
            seconds = report.get(f"methods/{dataset}/{method}/seconds", {}).get("median")
            ratio = report.get(f"methods/{dataset}/{method}/over_pflego")
            line += [fixed(seconds, ".3f"), fixed(ratio)]
        seconds = of_paper.get(method)
        line += [fixed(seconds, ".3f"), fixed(seconds and seconds / of_paper["pflego"])]
        lines.append(line)
    head = ["method", "Fashion-MNIST", "ratio", "Omniglot", "ratio", "paper, Omniglot", "ratio"]
    return markdown(head, lines)


def _bodies(results, bodies):
    """Returns the table of methods on several bodies, from {experiment: words for its body}."""

    def place(row):
        newton = ", Newton's steps" if "newton" in row["run"] else ""
        return f"`{row['algorithm']}`{newton}", store.settings_of(row)[0]["personalization"]

    heads = {"high": "2 classes", "medium": "5 classes", "no": "10 classes"}
    cells = {
        (method, words): runs
        for name, words in bodies.items()
        for method, runs in crossed(store.runs_in(results / name / store.RUNS), place).items()
    }
    degrees = [degree for degree in heads if any(degree in runs for runs in cells.values())]
    lines = [
        [
            *(*about, *(accuracy(runs.get(degree, []), store.SERVED) for degree in degrees)),
            seconds([row for of_degree in runs.values() for row in of_degree]),
        ]
        for about, runs in cells.items()
    ]
    columns = [heads[degree] for degree in degrees]
    return markdown(["method", "network", *columns, "seconds a round"], lines)


def _texts(results):
    """Returns the tables of methods with and without adapters, one for each task on texts."""

    def line(method, adapters, runs, statistic, scale, form):
        values = [scale * row[f"test_{statistic}/client_mean/last10"] for row in runs]
        shown = f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form}}"
        # The texts of a participant pass forward as often in a round.
        steps = int(runs[0]["local_steps"]) if adapters == "own" and method == "pflego" else 0
        passes = int(runs[0]["local_epochs"] or 1 + steps)
        megabytes = f"{bytes_of_round(runs) / 1e6:.3g}"
        return [f"`{method}`", adapters, shown, passes, megabytes, seconds(runs)]

    parts = []
    for task, (title, head, *about) in _TEXTS.items():
        files = {words: results / f"{task}{end}" / store.RUNS for end, words in _ADAPTERS.items()}
        lines = [
            line(method, adapters, runs, *about)
            for adapters, file in files.items()
            if file.exists()
            for method, runs in grouped(store.runs_in(file), "algorithm").items()
        ]
        heads = ["method", "adapters", head, "passes", "megabytes a round", "seconds a round"]
        parts += [f"## {title}", markdown(heads, lines)]
    return "\n\n".join(parts)


def frozen_rounds(report):
    """Returns the table of frozen networks, from the part `frozen` of the benchmark."""
    lines = []
    for network in dict.fromkeys(re.findall(r"frozen/(\w+)/", " ".join(report))):
        of = {key.partition(f"/{network}/")[2]: value for key, value in report.items()}
        times = (
            f"{of[f'{way}/seconds']['median']:.3f} ({of[f'{way}/cpu_seconds']['median']:.3f})"
            for way in ("images", "features")
        )
        ratios = f"{of['images_over_features']:.0f} ({of['cpu_images_over_features']:.0f})"
        once = f"{of['features/prepared_cpu_seconds']:.1f}"
        peaks = (f"{of[f'{way}/peak_megabytes']:,.0f}" for way in ("images", "features"))
        lines.append([f"`{network}`", *times, ratios, once, *peaks])
    head = ["network", "round on images, s", "round on features, s", "ratio"]
    head += ["features once, CPU s", "MB, images", "MB, features"]
    return markdown(head, lines)


def compiled(report):
    """Returns the table of the part `differences` of the benchmark."""
    of = {k.partition("/")[2]: d for k, d in report.items() if k.startswith("differences/")}
    columns = [*next(iter(of.values()))]
    lines = [
        [f"`{name}`", *(f"{values[column]:.0e}" for column in columns)]
        for name, values in of.items()
    ]
    heads = (" of ".join(column.split("_")) for column in columns)
    return markdown(["method", *heads], lines)


def _exports(report):
    """Returns the page of exported models, from the part `exports` of the benchmark."""
    lines = []
    for row in report["of_one_client"]:
        times = (fixed(row[key]) or "-" for key in ("predict_ms", "personalize_ms"))
        shown = f"{row['bytes']:,}", f"{PERCENT * row['test_accuracy']:.2f}"
        lines.append([row["form"], *shown, *times])
    head = ["form", "bytes", "test accuracy", "prediction, ms", "personalisation, ms"]
    many = report["of_many_clients"]
    return (
        "# What exported models weigh, and how fast they are\n\n"
        f"One client of Fashion-MNIST ({report['num_parameters']:,} weights of the body, "
        f"{many['rows']} classes), TensorFlow {report['tensorflow']}. A prediction is of one "
        f"image, a personalisation of 50 steps on {report['train_examples']} images.\n\n"
        f"{markdown(head, lines)}\n\n"
        f"{many['clients']:,} clients with one body: {many['bytes']:,} bytes, of which the "
        f"heads are {many['bytes_of_heads']:,}, written in {many['seconds']:.1f} s "
        f"({many['bytes'] / many['clients']:,.0f} bytes per client).\n"
    )


def _speeds(report):
    """Returns the table of images a second, from the part `cifar10` of the benchmark."""

    def of(row, key):
        return report[f"cifar10/{row['algorithm']}/in_process/{key}"]

    rows = ((row["algorithm"], row) for row in numbers_of("pgfed") if "relative_speed" in row)
    return table(
        *("method", rows),
        ("images a second", lambda row: fixed(of(row, "images_per_second"), ".0f")),
        ("relative speed", lambda row: fixed(of(row, "relative_speed"), ".3f")),
        ("paper", lambda row: fixed(row["relative_speed"], ".3f")),
    )


def _differences(rows):
    return table(
        *("method", ((row["method"], row) for row in rows)),
        ("largest difference of a weight", lambda row: f"{float(row['largest_difference']):.1e}"),
        ("bridges", lambda row: row["bridges"] or "none"),
    )
