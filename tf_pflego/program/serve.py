"""Trains with clients that are programs on other machines, each with its own data.

The flags of train describe the run, and a dataset or a table that represents the clients' data, by
only its shapes and classes. `--define=FILE` writes the definition for all sites and ends. Each site
gives that file to `tf-pflego client`.
"""

import dataclasses
import functools

from tf_pflego.core.settings import path_setting, setting
from tf_pflego.program import flags, personalize, terminal, train
from tf_pflego.program.run_options import start_tensorflow
from tf_pflego.system.signals import Interruption

USAGE = "--sockets=DIR --client_names=NAME,... [--NAME=VALUE ...]"
EXAMPLE = "--flagfile=run_configs/quickstart.flags --sockets=sockets --client_names=site_a,site_b"


@dataclasses.dataclass(frozen=True)
class Options(flags.VerbOptions):
    """The options of a server in addition to the flags of train."""

    define: str = path_setting("write the definition of the federation to this file, and end")
    name: str = setting("", "name of the federation, or empty for the name of its data")
    sample: str = path_setting(
        "an .npz file in the format of the sites' files, which represents their data instead of a "
        "dataset; its examples may be made up"
    )


def define_flags(flag_values, arguments) -> None:
    """Defines the flags of train and of a server."""
    train.define_flags(flag_values, arguments)
    flags.define_options(Options, flag_values)


def run(flag_values, interruption: Interruption) -> None:
    """Writes the definition, or serves and shows the table of the run."""
    options = flags.options_from(Options, flag_values)
    flag_values["engine"].value = "devices"
    flag_values["engine"].present = 1
    begin = functools.partial(_served, options)
    if not options.define:
        terminal.begin_with_time()
        train.run(flag_values, interruption, begin)
        return
    plan, _ = flags.from_flags(flag_values)
    start_tensorflow()
    definition = _definition(plan, options)
    definition.save(options.define)
    terminal.show(f"the definition {definition.identity} is in {options.define}")


def _definition(plan, options):
    from tf_pflego import data  # It starts TensorFlow.
    from tf_pflego.devices import server

    if options.sample:
        ((train, test),) = personalize.arrays_of([options.sample])
        about = {"task": plan.settings.task, "name": plan.settings.dataset}
        space = plan.settings.label_space
        clients = data.from_arrays([train], [test], label_space=space, **about)
        plan = dataclasses.replace(plan, clients=clients)
    return server.define(plan, options.name)


def _served(options, plan, **how):
    from tf_pflego.devices import server

    return server.train(plan, _definition(plan, options), **how)
