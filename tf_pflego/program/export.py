"""Writes clients' models of a run to files that are used without this package."""

import dataclasses

from tf_pflego.core.settings import setting
from tf_pflego.core.statistic_names import first_of
from tf_pflego.program import flags, terminal
from tf_pflego.program.run_options import RunOptions
from tf_pflego.serving import exporting as export_lib
from tf_pflego.system import log
from tf_pflego.system.signals import Interruption

BUNDLE, HEADS = "bundle", {"none": "float32", "float16": "float16"}


USAGE = "--run=DIR --output_dir=DIR [--NAME=VALUE ...]"
EXAMPLE = "--run=runs/first --clients=worst:10 --format=tflite --output_dir=models"


@dataclasses.dataclass(frozen=True)
class Options(RunOptions):
    """The models to export, and their format."""

    clients: str = setting(
        "all", "clients to export: their numbers such as 3,7, or all, or worst:10 for the ten worst"
    )
    format: str = setting(
        "savedmodel",
        "format of the models: SavedModel and TFLite support on-device training, and Keras only "
        "predicts. A bundle is one SavedModel for all clients of a method with one body",
        choices=(*export_lib.FORMATS, BUNDLE),
    )
    learning: bool = setting(True, "write the functions for on-device training, except for Keras")
    quantize: str = setting(
        "none",
        "format of TFLite's frozen weights, or of a bundle's heads (float16). The accuracy before "
        "and after is shown, except for a bundle",
        choices=export_lib.QUANTIZATIONS,
    )

    def __post_init__(self):
        super().__post_init__()
        self.refuse_empty("run", "output_dir")
        if self.format == BUNDLE and self.quantize == "int8":
            raise ValueError("`quantize` must be none or float16 for bundle; got int8. Choose one.")


def run(flag_values, interruption: Interruption) -> None:
    """Exports, and shows a line per client."""
    options = flags.options_from(Options, flag_values)
    export_lib.refuse_used(options.output_dir, options.overwrite)
    with options.opened() as run, run.simulation("in_process") as simulation:
        interruption.check()
        name = options.served_model or None
        if options.format == BUNDLE:
            from tf_pflego.serving.bundle import export_bundle  # It starts TensorFlow.

            where, heads = options.output_dir, HEADS[options.quantize]
            more = name, heads, options.learning, options.overwrite
            content = export_bundle(simulation, options.clients, where, *more)
            terminal.show(f"{content['clients']['count']} clients written to {where}")
            return
        shown: list[dict] = []

        def show(entry):
            if not log.is_quiet():
                _show_row(entry, not shown)
            shown.append(entry)
            interruption.check()

        how = options.format, name, options.quantize, options.learning, show, options.overwrite
        export_lib.export_clients(simulation, options.clients, options.output_dir, *how)
    terminal.show(f"written to {options.output_dir}")


def _show_row(entry, is_first):
    first = first_of(name for name in entry if not name.endswith("_of_run"))
    head = f"{first.title} in the run"
    width = len(head) + 1
    called = str(entry.get("name") or entry["client"])
    if is_first:
        terminal.show(f"     bytes  {head}  of the file  client")
    before, after = (
        first.written(entry.get(f"test_{first.name}{of_what}")) for of_what in ("_of_run", "")
    )
    terminal.show(f"{entry['bytes']:>10,} {before:>{width}} {after:>12}  {called}")
