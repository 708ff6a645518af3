"""Writes a report of runs: a page to read, or figures for a paper."""

import pathlib
from collections.abc import Sequence

from tf_pflego.reports.stored import read
from tf_pflego.system import values

FORMATS = ("html", "png")
_PAGE_SUFFIXES = (".html", ".htm")


def write(
    dirs: str | pathlib.Path | Sequence[str | pathlib.Path],
    output: str | pathlib.Path,
    format: str = "html",
    reference: str | pathlib.Path | None = None,
) -> list[pathlib.Path]:
    """Writes a report of runs, also of those that go on or were interrupted.

    Args:
      dirs: The directory of a run, or those of several.
      output: The page, a file that ends in .html; with `format="png"` the directory of figures. A
        file that is there is replaced when the new one is whole.
      format: html or png.
      reference: The run, one of `dirs`, that the clients of the others are compared with; the
        default is the first that has ended.

    Returns:
      The files that were written.

    Raises:
      RunError: A directory is not that of a run, or a file in it is damaged.
      ValueError: The output cannot be one, or the reference is not among the runs.
      OSError: The output cannot be written.
    """
    given = [dirs] if isinstance(dirs, (str, pathlib.Path)) else list(dirs)
    paths = [pathlib.Path(values.path("dirs", path)).expanduser() for path in given]
    output = pathlib.Path(values.path("output", output)).expanduser()
    if not paths:
        raise ValueError("there must be at least one run; got none. Name the directory of a run.")
    _check_output(output, format)
    places = [path.resolve() for path in paths]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ValueError(
                f"the runs must be different directories; got {paths[number]} twice. Name it once."
            )
    chosen = None
    if reference is not None:
        chosen = pathlib.Path(values.path("reference", reference)).expanduser().resolve()
    if chosen is not None and chosen not in places:
        raise ValueError(
            f"`reference` must be one of the runs; got {reference}. Name one of "
            f"{', '.join(map(str, paths))}."
        )
    runs = [read(path) for path in paths]
    if chosen is None:
        number = next((k for k, run in enumerate(runs) if run.clients is not None), 0)
    else:
        number = places.index(chosen)
    # matplotlib takes a part of a second, which an error need not wait for.
    from tf_pflego.reports import page, papers

    if format == "html":
        return [page.write(runs, number, output)]
    return papers.write(runs, number, output)


def _check_output(output, format):
    if format not in FORMATS:
        raise ValueError(
            f"`format` must be one of {', '.join(FORMATS)}; got {format!r}. Choose one of them."
        )
    if not output.parent.is_dir():
        raise ValueError(
            f"`output` must be in a directory that exists; {output.parent} does not. Make it, or "
            "choose another `output`."
        )
    if format == "html" and (output.suffix not in _PAGE_SUFFIXES or output.is_dir()):
        raise ValueError(
            f"`output` must be a file whose name ends in .html; got {output}"
            f"{', a directory' if output.is_dir() else ''}. Write `output='report.html'`, or "
            "`format='png'` for a directory of figures."
        )
    if format == "png" and output.exists() and not output.is_dir():
        raise ValueError(
            f"`output` must be a directory with `format='png'`; {output} is a file. Choose another "
            "`output`."
        )
