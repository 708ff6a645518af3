"""The documentation site beside MkDocs; `mkdocs.yml` names this file as a hook.

The pages of `docs/` are read in two places: as files of the repository, and on the site. They link
to files of the repository by paths such as `../SECURITY.md` or `../tf_pflego/core/algorithm.py`,
which is right for the first. For the site,

* a Markdown file that a page links to becomes a page of the site, and so do its own links,
* the source of a method, or its page of facts, becomes the page that `method_pages` makes,
* a notebook becomes a page with what its cells have printed and drawn,
* the tables of the quickstart become its report page, made from the committed results,
* any other source becomes a page that shows it, and
* images, tables and other data are copied.

Those of methods and notebooks are in folders of these names, all others in the folder `repository`
of the site. A link to what does not exist ends the build.

A line `<!-- settings of RunConfig -->` becomes the table of its settings, and a line
`<!-- example of README.md -->` the first Python block there and its output. Text between the lines
`<!-- in the repository alone -->` and `<!-- end -->` is not on the site.

Below a heading `## NAME`, a line `::: tf_pflego.NAME` is the entry of a public name of the API. The
entry has a heading of its own, with the signature, in the place of that one.
"""

import json
import os
import pathlib
import posixpath
import re
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # TensorFlow reads these at its import.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # It says on standard error that they are on.

import method_pages
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from tf_pflego.algorithms import REGISTRY
from tf_pflego.runs.config import RunConfig
from tf_pflego.sweeps import load_sweep

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = "repository"
_HOME_PAGE = "README.md"
_REPORT, _REPORTED = "report.html", "results/quickstart/tables.md"

# A link, or a fenced block, in which none is one.
_LINK_OR_FENCE = re.compile(
    r"^(?P<fence>```+).*?^(?P=fence)\s*$|(?<!\\)\]\((?P<link>[^)\s]+)\)", re.DOTALL | re.MULTILINE
)
_ENTRY = re.compile(r"^## (\w+)\n\n::: tf_pflego\.\1$", re.MULTILINE)
_ENTRY_ON_SITE = r"""<a id="{anchor}"></a>

::: tf_pflego.{name}
    options:
      heading_level: 2
      show_root_heading: true
      show_root_toc_entry: true
"""
_SETTINGS = "<!-- settings of RunConfig -->"
_EXAMPLE = "<!-- example of README.md -->"
_NOT_ON_SITE = re.compile(
    r"^<!-- in the repository alone -->\n.*?^<!-- end -->\n+", re.DOTALL | re.MULTILINE
)
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
# Other kinds are copied; data would be large pages.
_SHOWN = (".py", ".flags", ".txt", ".toml", ".cff", ".yml", "")


def on_config(config):
    """Adds the pages of the methods to the navigation, below their table."""
    for section in config.nav:
        if pages := section.get("Reference"):
            tables = "methods.md", "method_facts.md"
            pages.append({"Methods": [*tables, *map(_method_page, REGISTRY)]})
    return config


def on_files(files, *, config):
    """Adds what the pages link to, and what that links to."""
    for name in REGISTRY:
        page = _method_page(name)
        if facts := files.get_file_from_path(page):
            files.remove(facts)  # They are a part of the page.
        files.append(File.generated(config, page, content=method_pages.markdown(name, ROOT)))
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        file = waiting.pop()
        for target in _linked(file.content_string, _repository_path(file.src_uri)):
            uri = _site_uri(target, file.src_uri)
            if files.get_file_from_path(uri) is None:
                files.append(_added(config, target, uri))
                if uri.endswith(".md") and target.endswith((".md", ".ipynb")):
                    waiting.append(files.get_file_from_path(uri))
    return files


def on_page_markdown(markdown, *, page, config, files):
    """Turns links to files of the repository into links of the site."""
    uri = page.file.src_uri
    here = _repository_path(uri)
    markdown = _NOT_ON_SITE.sub("", markdown).replace(" ± ", "\u00a0±\u00a0")

    def rewritten(match):
        target, anchor = _target(match["link"], here)
        if target is None:
            return match[0]
        path = posixpath.relpath(_site_uri(target, uri), posixpath.dirname(uri) or ".")
        return f"]({path}{anchor})"

    markdown = _LINK_OR_FENCE.sub(rewritten, markdown)
    if _SETTINGS in markdown:
        table = "\n".join(method_pages.settings_table(RunConfig))
        markdown = markdown.replace(_SETTINGS, table)
    if _EXAMPLE in markdown:
        readme = (ROOT / _HOME_PAGE).read_text(encoding="utf-8")
        example = re.search(r"```python\n.*?```\n\n```text\n.*?```\n", readme, re.DOTALL)[0]
        markdown = markdown.replace(_EXAMPLE, example)
    return _ENTRY.sub(
        lambda match: _ENTRY_ON_SITE.format(name=match[1], anchor=match[1].lower()), markdown
    )


def _repository_path(uri):
    """Returns the path in the repository of what is a file of the site."""
    if uri.startswith(f"{FOLDER}/"):
        path = uri.removeprefix(f"{FOLDER}/")
        return path if (ROOT / path).exists() else path.removesuffix(".md")
    return uri if uri.startswith("notebooks/") else f"docs/{uri}"


def _site_uri(target, page):
    """Returns the path on the site of a file of the repository."""
    if target == _HOME_PAGE:
        return "index.md"
    if target == _REPORTED:
        return _REPORT
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    path = pathlib.PurePosixPath(target)
    made = None
    if str(path.parent) == "tf_pflego/algorithms" and path.stem in REGISTRY:
        made = _method_page(path.stem)
    elif path.suffix == ".ipynb":
        made = str(path.with_suffix(".md"))
    # The page that is made of a source links to it; everybody else to the page.
    if made not in (None, page):
        return made
    return f"{FOLDER}/{target}{'.md' if path.suffix in _SHOWN else ''}"


def _linked(markdown, here):
    """Yields the paths in the repository that a page links to."""
    for match in _LINK_OR_FENCE.finditer(markdown):
        if target := _target(match["link"], here)[0]:
            yield target


def _target(link, here):
    """Returns the path in the repository that a link leads to, or None, and its anchor."""
    if link is None or re.match(r"[a-z][a-z0-9+.-]*:|#", link):  # Of another site, or this page.
        return None, ""
    path, hash_sign, anchor = link.partition("#")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    if not target.startswith("docs/methods/") and not (ROOT / target).is_file():
        raise PluginError(f"{here} links to {link}, which is no file of the repository")
    return target, f"{hash_sign}{anchor}"


def _added(config, target, uri):
    """Returns the file of the site for one of the repository."""
    source = ROOT / target
    if uri == _REPORT:
        with tempfile.TemporaryDirectory() as directory:
            page = pathlib.Path(directory, _REPORT)
            load_sweep(source.parent).report(page)
            return File.generated(config, uri, content=page.read_text(encoding="utf-8"))
    if not uri.endswith(".md"):
        return File.generated(config, uri, abs_src_path=str(source))
    content = source.read_text(encoding="utf-8")
    if source.suffix == ".ipynb":
        return File.generated(config, uri, content=_notebook(json.loads(content), source.name))
    if source.suffix != ".md":
        language = source.suffix.removeprefix(".") or "text"
        content = f"# {target}\n\n````{language}\n{content.rstrip()}\n````\n"
    if source.suffix != ".md" or source.parent != ROOT:  # Pages say the same, such as on results.
        content = f"{_NOT_SEARCHED}{content}"
    return File.generated(config, uri, content=content)


def _notebook(notebook, name):
    """Returns a notebook as Markdown, with the outputs that it is stored with."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"````python\n{text}\n````")
        for output in cell.get("outputs", ()):
            if picture := output.get("data", {}).get("image/png"):
                parts.append(
                    f"![a picture that the cell draws](data:image/png;base64,{picture.strip()})"
                )
            else:
                parts.append(f"````text\n{''.join(output['text']).rstrip()}\n````")
    title, _, rest = "\n\n".join(parts).partition("\n\n")
    return f"{title}\n\nTo run it, take the file [{name}]({name}).\n\n{rest}"


def _method_page(name):
    return f"methods/{name}.md"
