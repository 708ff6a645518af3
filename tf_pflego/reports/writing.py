"""Writes a report of runs: a page to read, or figures for a paper.

The page is a single HTML file without dependencies, with finished figures.
page.js implements switches, sorting and searching, and page.css colours and widths; both are part
of the file. Without scripts there are the first figures, all tables and the first clients.
"""

import base64
import contextlib
import hashlib
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_pflego.reports import metrics
from tf_pflego.reports.stored import read
from tf_pflego.system import durable, limited_files, texts, values

FORMATS = ("html", "png", "pdf", "svg")
_PAGE_SUFFIXES = (".html", ".htm")
_HERE = pathlib.Path(__file__).parent


def write(
    dirs: str | pathlib.Path | Sequence[str | pathlib.Path],
    output: str | pathlib.Path,
    format: str = "html",
    reference: str | pathlib.Path | None = None,
) -> list[pathlib.Path]:
    """Writes a report of runs, also of those that go on or were interrupted.

    Args:
      dirs: The directory of a run, or of several.
      output: The page, a file that ends in .html; in another format the directory of figures. An
        existing report of the same runs is replaced when the new report is whole.
      format: html, png, pdf or svg.
      reference: The run, one of `dirs`, for comparisons of the other runs' clients; the default is
        the first that has ended.

    Returns:
      The files that were written.

    Raises:
      RunError: A directory is not a run's, or a file in it is damaged.
      ValueError: The output cannot be a report, or exists and is no report of these runs, or the
        reference is not among the runs.
      OSError: The output cannot be written.

    Example, explained in docs/program.md#a-report-of-runs:
      >>> pfl.report("runs/small", "report.html")
      [PosixPath('report.html')]
    """
    one_or_more = [dirs] if isinstance(dirs, (str, pathlib.Path)) else values.listed("dirs", dirs)
    paths = [pathlib.Path(values.path("dirs", path)).expanduser() for path in one_or_more]
    output = pathlib.Path(values.path("output", output)).expanduser()
    if not paths:
        raise ValueError("there must be at least one run; got none. Name the directory of a run.")
    check_output(output, paths, format)
    places = [path.resolve() for path in paths]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ValueError(
                f"the runs must be different directories; got {paths[number]} twice. Name it once."
            )
    runs = [read(path) for path in paths]
    base = next((run for run in runs if run.clients is not None), runs[0])
    if reference is not None:
        place = pathlib.Path(values.path("reference", reference)).expanduser().resolve()
        if place not in places:
            raise ValueError(
                f"`reference` must be one of the runs; got {reference}. Name one of "
                f"{', '.join(map(str, paths))}."
            )
        base = runs[places.index(place)]
    if format != "html":
        return _write_figures(runs, base, output, format)
    # matplotlib and Jinja2 take a part of a second, which an error need not wait for.
    from tf_pflego.reports import view

    content = view.page_of(runs, base) | {"mark": mark_of(run.path for run in runs)}
    write_page(_HERE / "page.html.jinja", content, output)
    return [output]


def mark_of(dirs: Iterable[pathlib.Path]) -> str:
    """Returns the creator's name in a report, which is another one for other directories."""
    places = sorted(os.fsencode(path.resolve()) for path in dirs)
    return f"tf-pflego report {hashlib.sha256(bytes(1).join(places)).hexdigest()[:32]}"


def _refuse_others(path, mark):
    """Raises ValueError if a file is there that is no report with this mark."""
    if os.path.lexists(path):
        with contextlib.suppress(OSError, limited_files.DamagedFileError):
            if mark.encode() in limited_files.content(path):
                return
        raise ValueError(
            f"`output` must be new, or a report of the same directories; {path} is another file. "
            "Choose another `output`, or remove it."
        )


def check_output(output: pathlib.Path, dirs: Iterable[pathlib.Path], format: str = "html") -> None:
    """Raises ValueError if a report of this format on these directories cannot be written there."""
    values.one_of("format", format, FORMATS)
    if not output.parent.is_dir():
        raise ValueError(
            f"`output` must be in a directory that exists; {output.parent} does not. Make it, or "
            "choose another `output`."
        )
    if format == "html" and (output.suffix not in _PAGE_SUFFIXES or output.is_dir()):
        raise ValueError(
            "`output` must be an .html file; got "
            f"{output}{', a directory' if output.is_dir() else ''}. Write `output='report.html'`, "
            "or `format='png'` for a directory of figures."
        )
    if format != "html" and output.exists() and not output.is_dir():
        raise ValueError(
            f"`output` must be a directory with `format={format!r}`; {output} is a file. Choose "
            "another `output`."
        )
    if format == "html":
        _refuse_others(output, mark_of(dirs))


def write_page(template: pathlib.Path, content: Mapping[str, Any], output: pathlib.Path) -> None:
    """Writes a page without dependencies, from a template and its data.

    The template may extend and import others of this folder.
    """
    import jinja2
    from markupsafe import Markup

    from tf_pflego.reports import figures

    def text(value: Any) -> Any:
        """Makes control characters visible, such as those that change the order of letters."""
        return value if isinstance(value, Markup) else texts.printable(str(value))

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_HERE, template.parent]),
        autoescape=True,
        finalize=text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    functions = metrics.listed, metrics.title_of, metrics.meaning_of, metrics.short, texts.counted
    environment.globals |= {function.__name__: function for function in functions}
    # The files of this folder, and the drawings, are all that is not escaped.
    style = Markup(f"\n{_palette(figures.COLORS)}{_file('page.css')}")
    script = Markup(f"\n{_file('page.js')}")
    policy = {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "img-src": "data:",
        "script-src": _hash_of(script),
        # Attributes style what is drawn. Browsers that do not know the last two take the first.
        "style-src": "'unsafe-inline'",
        "style-src-elem": _hash_of(style),
        "style-src-attr": "'unsafe-inline'",
    }
    page = environment.get_template(template.name).render(
        content,
        style=style,
        script=script,
        policy="; ".join(f"{key} {source}" for key, source in policy.items()),
    )
    with durable.batch() as files, files.open(output) as stream:
        stream.write(page.encode("utf-8"))


def _palette(colors):
    """Returns the variables of the series' colours, light and dark."""
    light, dark = (
        "".join(f"--s{number}:{color};" for number, color in enumerate(one))
        for one in zip(*colors, strict=True)
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def _file(name):
    return (_HERE / name).read_text(encoding="utf-8")


def _hash_of(content):
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _write_figures(runs, reference, output, format):
    from tf_pflego.reports import charts, figures, page_parts

    drawn = dict(charts.for_paper(page_parts.Runs(runs, reference)))
    if not drawn:
        raise ValueError(
            "at least one run must have an evaluated round; none has one yet. Wait for the first."
        )
    paths, mark = [output / f"{name}.{format}" for name in drawn], mark_of(run.path for run in runs)
    for path in paths:
        _refuse_others(path, mark)
    output.mkdir(exist_ok=True)
    with durable.batch() as files:
        for path, figure in zip(paths, drawn.values(), strict=True):
            with files.open(path) as stream:
                stream.write(figures.image_of(figure, format=format, creator=mark))
    return paths
