"""The page: one HTML file that needs nothing else, with figures that were drawn beforehand.

What a reader switches, sorts and types is done by page.js, and colours and widths by page.css; both
are put into the file. Without scripts there are the first figures, all tables and the first
clients.
"""

import base64
import hashlib
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from tf_pflego.reports import comparison, elements, figures, wording
from tf_pflego.reports.markup import Markup, element, joined
from tf_pflego.reports.sections_of_clients import ClientSections
from tf_pflego.reports.sections_of_training import TrainingSections
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.system import durable

_HERE = pathlib.Path(__file__).parent


def write(runs: Sequence[ReportedRun], reference: int, output: pathlib.Path) -> pathlib.Path:
    """Writes the page of runs; one that is there is replaced when the new one is whole.

    Args:
      runs: The runs.
      reference: The number of the run that the clients of the others are compared with.
      output: The file.

    Raises:
      OSError: The file cannot be written.
    """
    content = _Page(runs, reference).html().encode("utf-8")
    with durable.batch() as files, files.open(output) as stream:
        stream.write(content)
    return output


class _Page(TrainingSections, ClientSections):
    """The page; each of the methods that `html` calls returns a part of it."""

    def html(self):
        """Returns the page."""
        sections = {
            "runs": ("The runs", self._overview()),
            "curves": ("Training", self._curves()),
            "target": ("Cost to a target accuracy", self._target()),
            "clients": ("Clients at the end", self._distribution()),
            "gains": ("Who gained, who lost", self._gains()),
            "new-clients": ("New clients", self._new_clients()),
            "partition": ("Who holds what", self._partitions()),
            "table": ("Every client", self._table_of_clients()),
            "settings": ("Settings", self._settings()),
            "terms": ("What the metrics are", self._terms()),
        }
        sections = {key: (title, body) for key, (title, body) in sections.items() if body}
        links = [
            element("li", element("a", title, href=f"#{key}"))
            for key, (title, _) in sections.items()
        ]
        body = [
            element(
                "section",
                element("h2", title, id=f"{key}-title"),
                content,
                id=key,
                aria_labelledby=f"{key}-title",
            )
            for key, (title, content) in sections.items()
        ]
        return joined(
            Markup("<!DOCTYPE html>\n"),
            element("html", self._head(), element("body", self._body(links, body)), lang="en"),
            "\n",
        )

    def _head(self):
        style = f"\n{_palette()}{_file('page.css')}"
        policy = {
            "default-src": "'none'",
            "base-uri": "'none'",
            "form-action": "'none'",
            "img-src": "data:",
            "script-src": _hash_of(_script()),
            # Attributes style what is drawn. Browsers that do not know the last two take the first.
            "style-src": "'unsafe-inline'",
            "style-src-elem": _hash_of(style),
            "style-src-attr": "'unsafe-inline'",
        }
        allowed = "; ".join(f"{key} {value}" for key, value in policy.items())
        return element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", http_equiv="Content-Security-Policy", content=allowed),
            element("title", self._title()),
            element("style", Markup(style)),
        )

    def _body(self, links, sections):
        # No text of the data can end the element: "<" does not occur in it.
        data = json.dumps(self._data, separators=(",", ":")).replace("<", "\\u003c")
        made = "Made by ", element("code", "tf-pflego report"), " from the files of the runs."
        return [
            element("header", element("h1", self._title()), self._headline()),
            element("nav", element("ul", links), aria_label="Sections"),
            element("main", sections),
            element("footer", element("p", made)),
            element("script", Markup(data), type="application/json", id="data"),
            element("script", Markup(_script())),
        ]

    def _title(self):
        methods = list(dict.fromkeys(run.algorithm for run in self._runs))
        shown = wording.listed(methods[:6]) if len(methods) <= 6 else f"{len(methods)} methods"
        datasets = dict.fromkeys(str(run.configuration.get("dataset", "?")) for run in self._runs)
        return f"{shown} on {wording.listed(list(datasets))}"

    def _headline(self):
        configurations = [run.configuration for run in self._runs]

        def one(key):
            return wording.listed(
                list(dict.fromkeys(str(own.get(key, "?")) for own in configurations))
            )

        numbers = [
            run.configuration.get("num_clients") if run.holdings is None else len(run.holdings.keys)
            for run in self._runs
        ]
        numbers = list(dict.fromkeys(number for number in numbers if number))
        federation = f"{one('clients_per_round')} of the clients"
        if numbers:
            clients = wording.counted(wording.listed(numbers), "client")
            federation = f"{clients}, {one('clients_per_round')} of them"
        runs = wording.counted(len(self._runs), "run")
        parts = [
            element(
                "p",
                element("strong", "What was run."),
                f" {runs}: {one('algorithm')} on {one('dataset')}, with {federation} in a "
                f"round, and "
                f"{wording.counted(one('num_rounds'), 'round')}; seed {one('seed')}.",
            )
        ]
        parts.append(
            element("p", element("strong", "What came out."), f" {self._outcome()}"),
        )
        for run in self._runs:
            if not run.finished:
                wanted = run.configuration.get("num_rounds", "?")
                parts.append(
                    elements.note(
                        f"{self._names[id(run)]} has {run.num_rounds} of {wanted} rounds: it still "
                        "goes on or was interrupted, and is shown as far as it is."
                    )
                )
        return parts

    def _outcome(self):
        if not self._metrics:
            return "No run has an evaluated round yet."
        metric = self._metrics[0]
        sign = 1 if comparison.is_accuracy(metric) else -1
        found = [(self._final(one, metric), one) for one in self._series]
        found = sorted(
            ((value, one) for value, one in found if np.isfinite(value)),
            key=lambda pair: -sign * pair[0],
        )
        if not found:
            return "No run has a final value that is finite."
        said = comparison.title_of(metric)
        value, best = found[0]
        how = "highest" if sign > 0 else "lowest"
        last = " (mean of the last ten rounds)" if sign > 0 else ""
        text = f"The {said}{last}, is {wording.value(value, metric)} for {best.label}"
        if len(found) > 1:
            others = [
                f"{one.label} with {wording.value(value, metric)}" for value, one in found[1:6]
            ]
            more = f" and {len(found) - 6} more" if len(found) > 6 else ""
            text = (
                f"The {said}{last}, is {how} for {best.label} with "
                f"{wording.value(value, metric)}, followed by {wording.listed(others)}{more}"
            )
        if len(found) > 1 and all(len(one.runs) == 1 for _, one in found):
            text += (
                ". Each has one seed only; runs with others would show how much of a difference is "
                "chance"
            )
        return text + "."

    def _settings(self):
        configurations = [comparison.settings(run) for run in self._runs]
        differing = comparison.differing(configurations)
        names = [self._names[id(run)] for run in self._runs]
        keys = list(dict.fromkeys(key for own in configurations for key in own))

        def rows(chosen):
            return [
                [key, *(wording.cell(own.get(key, "–")) for own in configurations)]
                for key in chosen
            ]

        parts = []
        if len(self._runs) > 1:
            if differing:
                said = (
                    f"The runs differ in {len(differing)} of {len(keys)} settings; a dash means "
                    "that the method does not have a setting."
                )
                parts.append(element("p", said))
                parts.append(
                    elements.table("Settings that differ", ["setting", *names], rows(differing))
                )
            else:
                parts.append(element("p", "The runs have the same settings."))
        marked = [k for k, key in enumerate(keys) if key in differing]
        versions = dict.fromkeys(key for run in self._runs for key in run.versions)
        table = elements.table("All settings", ["setting", *names], rows(keys), marked=marked)
        of_versions = elements.table(
            "Versions",
            ["of", *names],
            [
                [key, *(wording.cell(run.versions.get(key, "–")) for run in self._runs)]
                for key in versions
            ],
        )
        parts.append(
            elements.details(
                f"All {len(keys)} settings and the versions",
                element("p", "≠ marks the settings that differ.") if marked else "",
                table,
                of_versions if versions else "",
            )
        )
        return parts

    def _terms(self):
        terms = {element("code", name): wording.meaning(name) for name in self._metrics}
        terms["seconds"] = (
            "The time of a round's training; in evaluated rounds it includes the test of the "
            "participants. Times of runs compare only if the machine and what else it did were the "
            "same."
        )
        terms["bytes"] = "What is sent down to the participants and up from them."
        return element(
            "dl", [[element("dt", name), element("dd", said)] for name, said in terms.items()]
        )


def _palette():
    """Returns the variables of the series' colours, light and dark."""

    def own(which):
        return "".join(f"--s{k}:{pair[which]};" for k, pair in enumerate(figures.COLORS))

    return f":root{{{own(0)}}}\n@media (prefers-color-scheme:dark){{:root{{{own(1)}}}}}\n"


def _file(name):
    return (_HERE / name).read_text(encoding="utf-8")


def _script():
    return f"\n{_file('page.js')}"


def _hash_of(content):
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
