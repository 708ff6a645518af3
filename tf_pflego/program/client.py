"""Joins a federation with the data of this machine; examples and labels are not sent.

The server of the federation gives each site a definition, a file with the model and its training.
The client lists the data that it will send, and starts after an agreement. From then on it answers
the server's requests on a socket in its directory, through a carrier such as Flower, and only
requests that match the definition. It can be stopped at any time. To continue it needs only its
directory.
"""

import contextlib
import dataclasses
import math
import sys
import tempfile

from tf_pflego import engines
from tf_pflego.core.settings import path_setting, setting
from tf_pflego.devices import client_socket, preview
from tf_pflego.devices.client_directory import SOCKET, Journal
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.resident import Resident
from tf_pflego.program import flags, terminal
from tf_pflego.program.personalize import ARRAYS, arrays_of
from tf_pflego.program.run_options import start_tensorflow
from tf_pflego.simulation.fitting import refuse_strange_integers
from tf_pflego.system import log, temporary
from tf_pflego.system.signals import Interruption

USAGE = "--definition=FILE --name=NAME --data=FILE.npz --state_dir=DIR [--NAME=VALUE ...]"
EXAMPLE = "--definition=definition.json --name=north --data=north.npz --state_dir=north"


@dataclasses.dataclass(frozen=True)
class Options(flags.VerbOptions):
    """The client, its federation and its data."""

    definition: str = path_setting("the server's file with the definition of the federation")
    name: str = setting("", "name of this client in the federation")
    data: str = path_setting(
        f"file with the arrays {', '.join(ARRAYS)}; labels are the numbers of the federation's "
        "classes or their names"
    )
    table: str = path_setting(
        "file of the client's rows, .csv, .tsv or .parquet, instead of data; the definition lists "
        "the columns"
    )
    missing: str = setting(
        "refuse",
        "treatment of rows with missing values: refuse or drop, unless the definition fills "
        "missing values",
        choices=("refuse", "drop"),
    )
    network: str = path_setting("Keras file of the network, if the definition needs it")
    state_dir: str = path_setting(
        "the client's own directory; once it exists, definition, name and data are not needed"
    )
    most_epsilon: float = setting(
        0.0,
        "largest epsilon, after all rounds, of a federation that the client joins, or 0 for any. "
        "Federations without differential privacy are rejected too",
        at_least=0,
    )
    consent: str = setting(
        "ask",
        "form of the consent: an answer at the terminal (ask), or given beforehand and only logged "
        "(log)",
        choices=("ask", "log"),
    )
    check: bool = setting(
        False,
        "try the data against the definition, without a server and without state_dir, and end",
    )

    def __post_init__(self):
        super().__post_init__()
        if not self.check:
            self.refuse_empty("state_dir")


def run(flag_values, interruption: Interruption) -> None:
    """Answers requests until a signal comes."""
    options = flags.options_from(Options, flag_values)
    if options.check:
        with tempfile.TemporaryDirectory(prefix="tf_pflego_client_") as directory:
            journal = Journal(directory)
            definition, clients, _ = _given(options, journal)
            with _resident(definition, clients, journal) as resident:
                _refuse_large_epsilon(options.most_epsilon, resident, definition)
                terminal.show("\n".join(preview.tried(resident)))
        return
    journal = Journal(options.state_dir)
    if journal.is_new and not options.definition:
        raise ValueError(
            f"`state_dir` must be the directory of a client that has begun; {journal.path} has "
            "none, or one that ended before its files were complete. Give `definition`, `name` "
            "and `data` as the first time."
        )
    with journal.locked():
        is_new = journal.is_new
        given = _given if is_new else _begun
        definition, clients, arrays = given(options, journal)
        with _resident(definition, clients, journal) as resident:
            _refuse_large_epsilon(options.most_epsilon, resident, definition)
            if is_new:
                lines = preview.promised(resident, definition)
                terminal.show("\n".join(lines))
                _refuse_disagreement(options.consent)
                journal.begin(definition, resident.name, arrays, lines)
            terminal.show(f"{resident.name} answers at {journal.path / SOCKET}")
            terminal.begin_with_time()
            client_socket.serve(
                resident,
                journal.path / SOCKET,
                interruption.check,
                _show_answer,
                lambda: resident.has_ended,
            )


def _refuse_large_epsilon(most, resident, definition):
    epsilon = preview.epsilon_at_the_end(resident, definition)
    if most and epsilon > most:
        got = "none, since nothing is noised" if math.isinf(epsilon) else f"{epsilon:.3g}"
        raise ValueError(
            f"`definition` must have an epsilon of at most {most:g}, the site's `most_epsilon`; "
            f"got {got}. Raise `most_epsilon`, or ask the server's side for more noise."
        )


@contextlib.contextmanager
def _resident(definition, clients, journal):
    """Gives the client, and frees it after it was used."""
    start_tensorflow()
    # As a simulation on this machine does it, so that the client gives the same numbers.
    engines.prepare_process(definition.participation.clients_per_round)
    with (
        temporary.own_directory(),
        contextlib.closing(Resident(definition, clients, journal)) as resident,
    ):
        refuse_strange_integers(resident.algorithm.model, clients)
        yield resident


def _given(options, journal):
    """Returns the definition, the client's data and their arrays, which flags name.

    The journal of a client that begins gets a copy of its network.
    """
    options.refuse_empty("definition", "name", *(() if options.table else ("data",)))
    definition = Definition.load(options.definition)
    if options.table:
        arrays = definition.arrays_of_table(options.table, options.missing)
    else:
        ((train, test),) = arrays_of([options.data])
        arrays = dict(zip(ARRAYS, (*train, *test), strict=True))
    definition.refuse_other_network(options.network)
    if options.network and journal.is_new:
        journal.keep_network(options.network)
    return definition, definition.client(options.name, arrays), arrays


def _begun(options, journal):
    """Returns them from the directory. Values of flags must be the same."""
    definition, arrays = journal.definition(), journal.examples()
    clients = definition.client(journal.name, arrays)
    if options.definition or options.name or options.data or options.table:
        options = dataclasses.replace(options, network=options.network or journal.network)
        other, same, _ = _given(options, journal)
        pairs = [
            (one.identity, c.client_names, c.fingerprints.tobytes())
            for one, c in ((definition, clients), (other, same))
        ]
        if pairs[0] != pairs[1]:
            raise ValueError(
                "`state_dir` must be new, or the directory of a client that began with the same "
                f"definition, name and data; {journal.path} has {journal.name}, which began with "
                "others. Remove `definition`, `name` and `data` to continue it."
            )
    return definition, clients, arrays


def _refuse_disagreement(consent):
    """Raises ValueError unless somebody agrees to the printed lines."""
    if consent == "log":
        return
    if not sys.stdin.isatty():
        raise ValueError(
            "`consent` must be log without a terminal for the question; got ask. Read the text "
            "above, and give `consent='log'` if you agree."
        )
    terminal.show("Do you agree? [y/N] ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ValueError("`consent` must be given to begin with; it was not, and nothing is sent.")


def _show_answer(line, down, up):
    if line and not log.is_quiet():
        terminal.show(terminal.timed(f"{line}: {down:,} bytes down, {up:,} up"))
