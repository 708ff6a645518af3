"""The sections of a page about clients: how they fare, and what they hold."""

import itertools
from typing import Any

import numpy as np

from tf_pflego.reports import comparison, drawing, elements, pairing, wording
from tf_pflego.reports.comparison import PERCENT
from tf_pflego.reports.markup import element
from tf_pflego.reports.sections import Sections
from tf_pflego.reports.stored import ReportedRun
from tf_pflego.system import terminal, texts

# The table of clients shows so many at a time, and has no more than so many.
_CLIENTS_SHOWN, _MOST_CLIENTS = 50, 10_000
_MOST_PARTITIONS = 4
_ONCE_PER_SEED = "Of runs with several seeds, each client counts once per seed"


class ClientSections(Sections):
    """Distribution, gains, new clients, partitions and the table of all clients."""

    def _distribution(self):
        ended = [one for one in self._series if len(comparison.accuracies_of(one))]
        if not ended:
            return element(
                "p", "No run has ended yet. The clients are tested one by one at the end."
            )
        rows, said = [], []
        for one in ended:
            values = comparison.accuracies_of(one)
            tenth = comparison.worst_decile(values)
            cells = (tenth, values.min(), np.median(values), values.mean(), values.max())
            rows.append([one.label, len(values), *(wording.percent(value) for value in cells)])
            median = wording.percent(cells[2])
            said.append(f"{one.label}: worst tenth {wording.percent(tenth)}, median {median}")
            unknown = sum(len(run.clients["test_accuracy"]) for run in one.runs if run.clients)
            if unknown > len(values):
                rows[-1][1] = f"{len(values)} of {unknown} (others have no finite accuracy)"
        missing = [one.label for one in self._series if one not in ended]
        note = []
        if missing:
            note = elements.note(f"Not ended, and so not here: {wording.listed(missing)}.")
        drawn = self._pair(
            lambda size: drawing.distribution(self._series, size),
            f"Distribution of the clients' test accuracies. {'; '.join(said)}.",
        )
        caption = (
            "Each line shows which share of the clients has at most a certain test accuracy at the "
            "end, with what each client would be served: the further right, the better. Under the "
            "thin line is the tenth of the clients that fare worst."
        )
        several = any(sum(run.clients is not None for run in one.runs) > 1 for one in ended)
        if several:
            caption += f" {_ONCE_PER_SEED}, also in the worst tenth."
        return [
            elements.figure(caption, self._legend(ended), drawn),
            note,
            elements.table(
                "Test accuracies of the clients at the end",
                [
                    "run",
                    "clients, over seeds" if several else "clients",
                    "mean of the worst tenth",
                    "lowest",
                    "median",
                    "mean",
                    "highest",
                ],
                rows,
            ),
        ]

    def _gains(self):
        others = [one for one in self._series if one is not self._base]
        if not others:
            return ""
        base, rows, notes, compared = self._base, [], [], []
        for one in others:
            found = pairing.gains_of(one, base)
            if found.why_not:
                notes.append(f"{one.label} is not compared: {found.why_not}.")
                continue
            compared.append(one)
            differences = found.differences
            rows.append(
                [
                    one.label,
                    int(np.count_nonzero(differences > 0)),
                    int(np.count_nonzero(differences < 0)),
                    int(np.count_nonzero(differences == 0)),
                    f"{differences.mean():+.2f}",
                    f"{differences.max():+.2f}",
                    f"{differences.min():+.2f}",
                ]
            )
        note = list(map(elements.note, notes))
        if not rows:
            return note
        said = "; ".join(f"{row[0]}: {row[1]} clients gained, {row[2]} lost" for row in rows)
        several = any(
            sum(pairing.partner_of(run, base) is not None for run in one.runs) > 1
            for one in compared
        )
        over_seeds = ", over seeds," * several
        drawn = self._pair(
            lambda size: drawing.gains(self._series, base, size),
            f"Gains of the clients{over_seeds} over {base.label}. {said}.",
        )
        caption = (
            "The test accuracy of each client at the end minus that of the same client in ",
            element("strong", base.label),
            ", the reference, from the client that lost most to the one that gained most: above "
            "zero a client is better off. Clients are compared only where both runs deal them the "
            "same examples.",
            f" {_ONCE_PER_SEED}, with the reference of that seed if there is one." * several,
        )
        return [
            elements.figure(caption, self._legend(compared), drawn),
            note,
            elements.table(
                f"Clients{over_seeds} by gain over {base.label}, in points of percent",
                ["run", "gained", "lost", "the same", "mean", "most gained", "most lost"],
                rows,
            ),
        ]

    def _new_clients(self):
        own = [one for one in self._series if any(run.new_clients for run in one.runs)]
        if not own:
            return ""
        rows = []
        for one in own:
            found = [
                drawing.new_client_curve(run.new_clients) for run in one.runs if run.new_clients
            ]
            before, after = (np.mean([values[k] for values in found]) for k in (0, -1))
            rows.append(
                [one.label, wording.percent(before), wording.percent(after), len(found[0]) - 1]
            )
        said = "; ".join(f"{row[0]}: {row[1]} before, {row[2]} after" for row in rows)
        drawn = self._pair(
            lambda size: drawing.new_clients(self._series, size),
            f"Accuracy of new clients by epochs of their own training. {said}.",
        )
        caption = (
            "The mean test accuracy of the clients that took no part in the training, before and "
            "after each epoch of their own training from what the server has."
        )
        return [
            elements.figure(caption, self._legend(own), drawn),
            elements.table(
                "Test accuracy of new clients",
                ["run", "before their training", "after it", "epochs"],
                rows,
            ),
        ]

    def _groups(self):
        """Returns the runs by what their clients hold; a run whose partition is unknown alone."""
        groups: dict[Any, list[ReportedRun]] = {}
        for run in self._runs:
            groups.setdefault(run.holdings.identity if run.holdings else id(run), []).append(run)
        return list(groups.values())

    def _partitions(self):
        groups = [group for group in self._groups() if group[0].holdings is not None]
        if not groups:
            return ""
        parts = []
        for group in groups[:_MOST_PARTITIONS]:
            parts.append(self._partition(group))
        if len(groups) > _MOST_PARTITIONS:
            parts.append(
                elements.note(
                    f"The runs have {len(groups)} different partitions; the first "
                    f"{_MOST_PARTITIONS} are shown."
                )
            )
        return parts

    def _partition(self, group):
        holdings = group[0].holdings
        clients, sizes = len(holdings.classes), holdings.train_sizes
        held = [len(own) for own in holdings.classes]
        blocks = []

        def drawn(size):
            figure, *numbers = drawing.partition(holdings, size)
            blocks[:] = numbers
            return figure

        said = (
            f"{clients} {'client holds' if clients == 1 else 'clients hold'} {texts.span(sizes)} "
            f"training examples of {texts.span(held)} {'class' if max(held) == 1 else 'classes'} "
            f"each, and {texts.span(holdings.test_sizes)} test examples"
        )
        pair = self._pair(drawn, f"Clients by classes. {said}.")
        caption = f"{said}. A column is a client and a row a class; "
        if holdings.class_counts is None:
            caption += (
                "a filled cell is a class that the client holds. The run was made by a version "
                "that did not keep the numbers of examples."
            )
        else:
            caption += (
                "the more a cell stands out, the more training examples; an empty cell has none."
            )
        if max(blocks) > 1:
            caption += (
                f" Each cell is the mean of a block of {blocks[0]} clients and {blocks[1]} "
                f"{'class' if blocks[1] == 1 else 'classes'}."
            )
        names = [self._names[id(run)] for run in group]
        whose = (
            "All runs have this partition."
            if len(group) == len(self._runs)
            else (f"The partition of {wording.listed(names)}.")
        )
        return elements.figure(f"{whose} {caption}", pair, class_="partition")

    def _table_of_clients(self):
        groups = [
            [run for run in group if run.clients is not None or run.holdings is not None]
            for group in self._groups()
        ]
        groups = [group for group in groups if group]
        if not groups:
            return ""
        columns = ["client", "training examples", "test examples", "classes"]
        several = len(groups) > 1
        if several:
            columns.insert(0, "partition")
        fixed = len(columns)
        ended = [run for group in groups for run in group if run.clients is not None]
        values = []  # of each further column: the run, and its accuracies by the clients' keys

        def by_key(run, column="test_accuracy"):
            shares = PERCENT * run.clients[column]
            return dict(zip(run.client_keys.tolist(), shares, strict=True))

        for run in ended:
            name = self._names[id(run)]
            for column in run.clients:
                if column.endswith("test_accuracy"):
                    model = column.removesuffix("test_accuracy").rstrip("/")
                    columns.append(f"{name}{', ' * bool(model)}{model}: accuracy, %")
                    values.append((run, by_key(run, column)))
        for run in ended:
            other = pairing.partner_of(run, self._base)
            if other is not None and run not in self._base.runs:
                columns.append(f"{self._names[id(run)]}: gain over {self._names[id(other)]}")
                ours, theirs = by_key(run), by_key(other)
                values.append((run, {k: ours[k] - theirs[k] for k in ours if k in theirs}))
        rows, total = [], 0
        for letter, group in enumerate(groups):
            own = self._client_rows(group, letter, values, several)
            total += len(own)
            rows += own
        rows = rows[:_MOST_CLIENTS]
        self._data["clients"] = {
            "fixed": fixed,
            "several": several,
            "rows": rows,
            "shown": _CLIENTS_SHOWN,
            "columns": [terminal.printable(name) for name in columns],
        }
        said = (
            "One row per client, with its test accuracy at the end in each run that has ended. A "
            "button in the head of a column sorts by it; again, the other way round."
        )
        if several:
            lists = [
                f"{wording.letter(k)}: {wording.listed([self._names[id(run)] for run in group])}"
                for k, group in enumerate(groups)
            ]
            said += (
                " Runs whose clients hold other examples, or of which no partition.npz says what "
                f"they hold, have rows of their own: {'; '.join(lists)}."
            )
        if total > len(rows):
            said += f" The table has the first {len(rows)} of {total} clients."
        return [
            element("p", said),
            self._filters(columns, fixed),
            self._first_clients(columns, rows),
        ]

    def _client_rows(self, group, letter, values, several):
        held = group[0].holdings
        if held is not None:
            keys, names = held.keys.tolist(), held.names or range(len(held.keys))
            about = zip(
                map(str, names) if self._named else names,
                held.train_sizes.tolist(),
                held.test_sizes.tolist(),
                (wording.classes(own, held.class_names) for own in held.classes),
                strict=True,
            )
        else:
            own = next(run for run in group if run.clients is not None)
            keys = own.client_keys.tolist()
            sizes = (own.clients[f"{split}_examples"].astype(int) for split in ("train", "test"))
            classes = own.clients.get("classes", [""] * len(keys))
            names = map(str, keys) if self._named else keys
            about = zip(names, *(one.tolist() for one in sizes), map(str, classes), strict=True)
        rows = []
        for key, row in itertools.islice(zip(keys, about, strict=True), _MOST_CLIENTS):
            cells = [
                wording.tidy(own.get(key, np.nan)) if run in group else None for run, own in values
            ]
            rows.append([*([wording.letter(letter)] if several else []), *row, *cells])
        rows += [None] * (len(keys) - len(rows))
        return rows

    def _filters(self, columns, fixed):
        texts = ("partition", "classes", "client" if self._named else "")
        names = {k: name for k, name in enumerate(columns) if name not in texts}

        def bound(identity, words):
            typed = {"type": "number", "step": "any", "autocomplete": "off"}
            return element("label", f"{words} ", element("input", id=identity, **typed))

        holds = element("input", id="filter-class", inputmode="numeric", size=5, autocomplete="off")
        return [
            element(
                "div",
                element("label", "Holds class ", holds),
                element("label", "Column ", elements.select("filter-column", names)),
                bound("filter-low", "at least"),
                bound("filter-high", "at most"),
                elements.button("filter-none", "Show all"),
                class_="controls",
                id="filters",
                hidden=True,
            ),
            element("p", id="clients-said", role="status"),
        ]

    def _first_clients(self, columns, rows):
        shown = [[wording.cell(value) for value in row] for row in rows[:_CLIENTS_SHOWN]]
        turn = element(
            "div",
            elements.button("turn-back", f"Previous {_CLIENTS_SHOWN}"),
            elements.button("turn-on", f"Next {_CLIENTS_SHOWN}"),
            class_="controls",
            id="turn",
            hidden=True,
        )
        return elements.table("Clients", columns, shown, "clients-table"), turn
