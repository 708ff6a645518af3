"""Drills that harm federations of processes, whose ends are compared with simulations'."""

import contextlib
import json
import pathlib
import shutil
import time
from typing import ClassVar
from unittest import mock

import numpy as np
from drill_runs import end
from harmed_federation import NAMES, HarmedFederation

from tf_pflego.engines.engine import Outcome
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.program import terminal
from tf_pflego.runs import training
from tf_pflego.runs.config import RunConfig
from tf_pflego.simulation import engine_choice

_SETTINGS = {"dataset": "digits", "num_clients": 5, "classes_per_client": 2, "network": "mlp"}
_SETTINGS |= {"num_rounds": 12, "clients_per_round": 5, "checkpoint_every": 2, "eval_every": 1}
# The last ten rounds are always tested, and all clients are there again by then.
_LONGER = {"num_rounds": 22, "eval_every": 22}
_HURRY = {"round_deadline": 15.0} | _LONGER
_THREE = {"clients_per_round": 3}
_TEN_YEARS = 315360000
# The harm -> (the plan of a `HarmedFederation`, the settings, whether clients are left out,
# which log says what).
FAULTS = {
    "a client is killed before an exchange": ([("request", 5, 1, "kill b, start_again b")], {}),
    "a client is killed while it computes": (
        [("work", 5, 1, "wait 0.01, kill b, start_again b")],
        {},
    ),
    "a client is killed when its state is written, and its answer is lost": (
        [("reply", 5, 1, "kill b, start_again b")],
        {},
    ),
    "three clients are killed in turn": (
        [
            (instant, number, client, f"kill {NAMES[client]}, start_again {NAMES[client]}")
            for instant, number, client in (("request", 3, 0), ("work", 6, 2), ("reply", 9, 4))
        ],
        {},
    ),
    "the server is killed in a round": ([("work", 5, 1, "kill server")], {}),
    "the server is killed when some have answered": ([("reply", 6, 1, "kill server")], {}),
    "the server is killed between rounds": ([("work", 6, 1, "kill_server_after_this_round")], {}),
    "the server is killed three times": (
        [("reply", number, 1, "kill server") for number in (2, 5, 8)],
        {},
    ),
    "the server and two clients are killed": (
        [("work", 5, 1, "kill server b d, start_again b d")],
        _THREE,
    ),
    "the server and all clients are killed": (
        [("reply", 5, 1, "kill server a b c d e, start_again a b c d e")],
        {},
    ),
    "a client stands still for a time (SIGSTOP, SIGCONT)": (
        [("work", 5, 1, "send_signal b SIGSTOP, wait 3, send_signal b SIGCONT")],
        {},
    ),
    "a client stands still past the deadline": (
        [("work", 5, 1, "send_signal b SIGSTOP"), ("request", 7, 0, "send_signal b SIGCONT")],
        _HURRY,
        True,
    ),
    "the link is cut within a request": ([("half a request", 5, 1, "wait 0")], {}),
    "the link is cut within an answer": ([("half a reply", 5, 1, "wait 0")], {}),
    "the link is cut for rounds": (
        [("reply", 4, 1, "cut b"), ("request", 7, 0, "join b")],
        _HURRY,
        True,
    ),
    "a request comes again, after that of the next round": (
        [("reply", 4, 1, "keep b"), ("reply", 5, 1, "give_again b")],
        {},
    ),
    "a client's disk is full for rounds": (
        [("request", 4, 1, "limit_files b 100"), ("request", 8, 0, "limit_files b -1")],
        _LONGER,
        True,
    ),
    "clocks are off by ten years, and one jumps": (
        [
            ("request", 2, 1, f"kill b, start_with_clock b {_TEN_YEARS}"),
            ("request", 4, 3, f"kill d, start_with_clock d -{_TEN_YEARS}"),
            ("request", 8, 1, "kill b, start_again b"),
        ],
        {},
    ),
    "a client's newest state is torn, and later copied back": (
        [
            ("request", 4, 1, "kill b, tear b, start_again b"),
            ("request", 8, 0, "copy_back b"),
        ],
        _LONGER,
        True,
    ),
    "a client returns after many rounds": (
        [("request", 2, 1, "kill b"), ("request", 9, 0, "start_again b")],
        _HURRY | _THREE,
        True,
    ),
    "a second client is started in the directory of one": (
        [("request", 4, 1, "start_one_more b b")],
        {},
        False,
        ("b", "must belong to one client"),
    ),
    "another client calls itself as one does": (
        [("request", 4, 1, "start_one_more b other"), ("work", 8, 1, "wait 20")],
        {},
        False,
        ("server", "it is called b, as b is"),
    ),
    "the server is killed, and its sockets move": (
        [("work", 5, 1, "move_sockets, kill server")],
        {},
    ),
    "a client is slow, and one more is drawn than needed": (
        [("request", number, 1, "wait 2") for number in (3, 6)],
        _THREE | {"spare_clients": 1},
        True,
    ),
}


class LeavesOut(InProcessEngine):
    """An engine where clients fail to report, as `absent` says by the number of the round."""

    absent: ClassVar[dict[int, list[int]]] = {}
    spare_clients = 0

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):  # noqa: D102
        absent = np.isin(cohort.ids, self.absent.get(int(round_.number), ()))
        if absent.any():
            return Outcome((), (), ~absent, {}, absent)
        return super().run_exchange(exchange, message, cohort, server_state, round_, evaluate)


@contextlib.contextmanager
def leaving_out(absent, spare_clients=0, engine=LeavesOut):
    """Lets simulations in process leave clients out, as it would be where these are elsewhere."""
    about = {"absent": absent, "spare_clients": spare_clients}
    with (
        mock.patch.multiple(engine, **about),
        mock.patch.object(engine_choice, "InProcessEngine", engine),
    ):
        yield


def harm_devices(options):
    """Harms a federation with each method in turn, and compares its end with a simulation's.

    The simulation leaves out the clients that the records of the federation say were left out.
    Faults that are in the results already with a good end are passed over.
    """
    results = pathlib.Path(options.results)
    entries = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    done = [entry["fault"] for entry in entries if entry["good"]]
    for place, (what, (plan, settings, *rest)) in enumerate(FAULTS.items()):
        if options.only not in what or what in done:
            continue
        leaves_out, says = (*rest, *(False, None)[len(rest) :])
        method = options.methods.split(",")[place % len(options.methods.split(","))]
        settings = _SETTINGS | {"algorithm": method, "seed": options.seed} | settings
        settings |= {"data_dir": options.data_dir} if options.data_dir else {}
        directory = pathlib.Path(options.scratch) / str(place)
        began = time.time()
        federation = HarmedFederation(directory, plan, settings)
        try:
            federation.serve()
        finally:
            federation.close()
        seconds = time.time() - began
        got, expected = end(federation.run), _simulated(directory, settings)
        left_out = sum(len(record.get("absent_clients", ())) for record in got[0])
        same = got[0] == expected[0] and got[3] == expected[3]
        same = same and _measured(got[1]) == _measured(expected[1])
        for client, state in got[2].items():
            (number,) = np.frombuffer(*state.values(), np.int64)
            own = list(expected[2][client].values())
            same = same and federation.state(client, number) == own
        good = same and (left_out > 0) == leaves_out
        good = good and (says is None or says[1] in federation.said(says[0]))
        entry = {"fault": what, "method": method, "rounds": len(got[0]), "left out": left_out}
        entry |= {"starts of the server": federation.starts, "seconds": round(seconds)}
        entry |= {"bits equal": same, "good": good}
        entries = [*(each for each in entries if each["fault"] != what), entry]
        results.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        yield entry, good
        if good:
            shutil.rmtree(directory)


def _measured(rows):
    """Returns of the table of clients the columns of what a server learns of them."""
    names = rows[0]
    columns = [place for place, name in enumerate(names) if "accuracy" in name or "loss" in name]
    return [[row[place] for place in columns] for row in rows]


def _simulated(directory, settings):
    """Returns the end of a simulation with the same reports."""
    lines = (directory / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = map(json.loads, lines)
    absent = {record["round"]: record.get("absent_clients", []) for record in records}
    settings = dict(settings)
    settings.pop("round_deadline", None)
    about = {"absent": absent, "spare_clients": settings.pop("spare_clients", 0)}
    config = RunConfig(**settings, engine="in_process", output_dir=str(directory / "simulation"))
    terminal.be_quiet(True)
    with leaving_out(**about):
        training.run(config)
    return end(directory / "simulation")
