"""The elements that a page has several of."""

import itertools
import re

from tf_pflego.reports.markup import element

_LONGEST_WORD = 24
_NUMBER = re.compile(r"[-+\N{MINUS SIGN}]?\d+(\.\d+)?(e[-+]?\d+)?(\N{NO-BREAK SPACE}%)?")


def note(text):
    """Returns a paragraph that is less than others."""
    return element("p", text, class_="note")


def figure(caption, *content, **attributes):
    """Returns a figure below its caption."""
    return element("figure", element("figcaption", caption), content, **attributes)


def details(summary, *content):
    """Returns what is shown when its summary is clicked."""
    return element("details", element("summary", summary), content)


def button(identity, words):
    """Returns a button that the script knows by its identity."""
    return element("button", words, type="button", id=identity)


def select(identity, titles):
    """Returns a list of {value: title} to choose from."""
    options = [element("option", title, value=value) for value, title in titles.items()]
    return element("select", options, id=identity, autocomplete="off")


def table(caption, head, rows, identity="", marked=()):
    """Returns a table whose first column heads the rows."""
    number_columns = [_is_of_numbers(column) for column in zip(*rows, strict=True)]
    columns = [
        element("th", name, scope="col", class_=_classes(name, of_numbers))
        for name, of_numbers in itertools.zip_longest(head, number_columns, fillvalue=False)
    ]
    sign = " ", element("span", "≠", class_="differs", title="differs")
    body = []
    for number, row in enumerate(rows):
        first, *cells = row
        inner = [
            element("td", cell, class_=_classes(cell, of_numbers))
            for cell, of_numbers in zip(cells, number_columns[1:], strict=True)
        ]
        differs = sign if number in marked else ""
        classes = _classes(first, number_columns[0])
        heading = element("th", first, differs, scope="row", class_=classes)
        body.append(element("tr", heading, inner, class_="marked" if number in marked else ""))
    table = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", columns)),
        element("tbody", body),
        id=identity,
    )
    return element("div", table, class_="scroll", role="region", tabindex=0, aria_label=caption)


def _is_of_numbers(cells):
    """Returns whether a column has numbers, with or without a unit, and dashes for unknown ones."""
    known = [str(cell) for cell in cells if str(cell) not in ("–", "not reached")]
    return bool(known) and all(map(_NUMBER.fullmatch, known))


def _classes(value, of_numbers):
    """Returns the classes of a cell: its column has numbers, or a word of it must be broken."""
    long = max(map(len, str(value).split()), default=0) > _LONGEST_WORD
    return " ".join(["number"] * of_numbers + ["long"] * long)
