"""Executes a notebook and stores what its cells print and draw.

  python tools/execute_notebook.py [notebooks/personal_models.ipynb]

The kernel is the Python that runs this, in an empty directory that is removed afterwards. Cells
with the tag `not_stored` keep no output.
"""

import os
import pathlib
import sys
import tempfile

import nbclient
import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "personal_models.ipynb"
NOT_STORED = "not_stored"
_SECONDS_PER_CELL = 300


class _Kernels(KernelSpecManager):
    """Knows one kernel: the Python that runs this, which needs no file outside the package."""

    def get_kernel_spec(self, kernel_name):
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


def main(path: pathlib.Path = NOTEBOOK) -> int:
    """Executes a notebook and writes it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="tf_pflego_notebook_") as directory:
        execute(notebook, directory)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it was executed
        if NOT_STORED in cell.metadata.get("tags", ()):
            cell.outputs = []
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not _is_of_machine(output)]
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)
    return 0


def _is_of_machine(output):
    """Returns whether TensorFlow's libraries tell of the machine, before its log can be set."""
    return output.get("name") == "stderr" and "cudart_stub" in output["text"]


def execute(notebook: nbformat.NotebookNode, directory: str | os.PathLike) -> None:
    """Executes the cells of a notebook in a directory; new outputs replace those that it has."""
    with tempfile.TemporaryDirectory(prefix="tf_pflego_kernel_") as home:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path}
        environment |= {"IPYTHONDIR": home, "JUPYTER_CONFIG_DIR": home}
        manager = AsyncKernelManager(
            kernel_spec_manager=_Kernels(),
            connection_file=f"{home}/kernel.json",
            transport="ipc",  # No port is open that others could connect to.
        )
        client = nbclient.NotebookClient(
            notebook,
            manager,
            timeout=_SECONDS_PER_CELL,
            resources={"metadata": {"path": str(directory)}},
            coalesce_streams=True,
        )
        client.execute(cleanup_kc=True, env=environment)


if __name__ == "__main__":
    sys.exit(main(*map(pathlib.Path, sys.argv[1:])))
