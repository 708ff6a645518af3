"""Writes clients' models of a run to files that are used without this package."""

import dataclasses
import functools

from tf_pflego.core import settings
from tf_pflego.core.settings import setting
from tf_pflego.program import flags, help_pages
from tf_pflego.program.opened import OWN_METHOD, opened, stored
from tf_pflego.serving import export as export_lib
from tf_pflego.serving import limits
from tf_pflego.system import terminal
from tf_pflego.system.signals import Interruption

FLAGS_OF_ARGUMENTS = {"client": "clients", "name": "model"}


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """What is exported, and how."""

    run: str = setting("", "output directory of the run", is_path=True)
    output_dir: str = setting("", "a new directory for the files", is_path=True)
    overwrite: bool = setting(
        False, "replace the earlier export that the output directory holds, when the new is whole"
    )
    clients: str = setting(
        "all", "which clients: their numbers such as 3,7, or all, or worst:10, the least accurate"
    )
    format: str = setting(
        "savedmodel",
        "SavedModel and TFLite learn on, Keras only serves",
        choices=limits.FORMATS,
    )
    model: str = setting("", "which of the models that the method serves; empty for the first")
    shared_body: bool = setting(
        False, "write the body once, and the heads as one array, for thousands of clients"
    )
    learning: bool = setting(True, "write what lets SavedModel and TFLite files learn on")
    quantize: str = setting(
        "none",
        "how TFLite holds the weights that do not learn on; the accuracy before and after is shown",
        choices=limits.QUANTIZATIONS,
    )
    data_dir: str = setting("", "TFDS data directory; empty for TFDS' own default", is_path=True)
    algorithm: str = setting("", OWN_METHOD)

    def __post_init__(self):
        settings.check(self)
        for name in ("run", "output_dir"):
            if not getattr(self, name):
                raise ValueError(f"`{name}` must name a directory; got nothing. Give `{name}`.")
        if self.shared_body and (self.format != "savedmodel" or self.quantize != "none"):
            raise ValueError(
                "`shared_body` must be used with `format='savedmodel'` and `quantize='none'`; got "
                f"{self.format} and {self.quantize}. Leave these out."
            )


define_flags = functools.partial(flags.define_options, ExportOptions)


def help_page(flag_values, columns: int | None) -> str:
    """Returns the help."""
    return help_pages.of_options(
        "export",
        "--run=DIR --output_dir=DIR [--NAME=VALUE ...]",
        ExportOptions,
        ["--run=runs/first --clients=worst:10 --format=tflite --output_dir=models"],
        columns,
    )


def run(flag_values, interruption: Interruption) -> None:
    """Exports, and shows a line per client."""
    options = flags.options_from(ExportOptions, flag_values)
    export_lib.refuse_used(options.output_dir, options.overwrite)
    with opened(stored(options.run, options.data_dir, options.algorithm)) as simulation:
        interruption.check()
        name = options.model or None
        if not options.shared_body:
            limits.refuse_what_cannot_leave(
                simulation, options.format, name, options.quantize, options.learning
            )
        clients = export_lib.chosen_clients(options.clients, simulation)
        if options.shared_body:
            from tf_pflego.serving.shared_body import export_shared_body  # It starts TensorFlow.

            content = export_shared_body(
                simulation, clients, options.output_dir, name, options.overwrite
            )
            terminal.show(f"{len(content['clients'])} clients written to {options.output_dir}")
            return
        shown: list[dict] = []

        def show(entry):
            if not terminal.is_quiet():
                _show_row(entry, not shown)
            shown.append(entry)
            interruption.check()

        export_lib.export_clients(
            simulation,
            clients,
            options.output_dir,
            options.format,
            name,
            options.quantize,
            options.learning,
            show,
            options.overwrite,
        )
    terminal.show(f"written to {options.output_dir}")


def _show_row(entry, is_first):
    if is_first:
        terminal.show("  client      bytes  accuracy in the run  of the file")
    before, after = entry["test_accuracy_of_run"], entry["test_accuracy"]
    terminal.show(f"{entry['client']:>8} {entry['bytes']:>10,} {before:>20.4f} {after:>12.4f}")
