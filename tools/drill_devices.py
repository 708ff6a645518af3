"""Drills that harm federations of processes, and compare their ends with simulations'."""

import contextlib
import json
import shutil
import time
from typing import ClassVar, NamedTuple
from unittest import mock

import numpy as np
from drill_runs import ROOT, end
from harmed_federation import HarmedFederation

from tf_pflego import engines
from tf_pflego.devices.reports import Reports
from tf_pflego.engines import in_process
from tf_pflego.engines.engine import Outcome
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.program import terminal
from tf_pflego.runs import training
from tf_pflego.runs.config import RunConfig

_SETTINGS = {"dataset": "digits", "num_clients": 5, "classes_per_client": 2, "network": "mlp"}
_SETTINGS |= {"num_rounds": 12, "clients_per_round": 5, "checkpoint_every": 2, "eval_every": 1}
# The last ten rounds are always tested, and all clients are there again by then.
_LONGER = {"num_rounds": 22, "eval_every": 22}
_HURRY = {"round_timeout": 15.0} | _LONGER
_THREE = {"clients_per_round": 3}
_TEN_YEARS = 315360000


class Fault(NamedTuple):
    """A harm, and its effect."""

    plan: str  # of a `HarmedFederation`
    settings: dict | None = None  # the changed ones
    leaves_out: bool = False  # clients, whose reports are missing
    log: str = ""  # whose log must say what follows
    says: str = ""


FAULTS = {
    "a client is killed before an exchange": Fault("request 5 b: kill b, start_again b"),
    "a client is killed while it computes": Fault("work 5 b: wait 0.01, kill b, start_again b"),
    "a client is killed when its state is written, and its answer is lost": Fault(
        "reply 5 b: kill b, start_again b"
    ),
    "three clients are killed in turn": Fault(
        "request 3 a: kill a, start_again a; work 6 c: kill c, start_again c; "
        "reply 9 e: kill e, start_again e"
    ),
    "the server is killed in a round": Fault("work 5 b: kill server"),
    "the server is killed when some have answered": Fault("reply 6 b: kill server"),
    "the server is killed between rounds": Fault("work 6 b: kill_server_after_this_round"),
    "the server is killed three times": Fault(
        "reply 2 b: kill server; reply 5 b: kill server; reply 8 b: kill server"
    ),
    "the server and two clients are killed": Fault(
        "work 5 b: kill server b d, start_again b d", _THREE
    ),
    "the server and all clients are killed": Fault(
        "reply 5 b: kill server a b c d e, start_again a b c d e"
    ),
    "a client stands still for a time (SIGSTOP, SIGCONT)": Fault(
        "work 5 b: send_signal b SIGSTOP, wait 3, send_signal b SIGCONT"
    ),
    "a client stands still past the deadline": Fault(
        "work 5 b: send_signal b SIGSTOP; request 7 a: send_signal b SIGCONT", _HURRY, True
    ),
    "the link is cut within a request": Fault("half_request 5 b: wait 0"),
    "the link is cut within an answer": Fault("half_reply 5 b: wait 0"),
    "the link is cut for rounds": Fault("reply 4 b: cut b; request 7 a: join b", _HURRY, True),
    "a request comes again, after that of the next round": Fault(
        "reply 4 b: keep b; reply 5 b: give_again b"
    ),
    "a client's disk is full for rounds": Fault(
        "request 4 b: limit_files b 100; request 8 a: limit_files b -1", _LONGER, True
    ),
    "clocks are off by ten years, and one jumps": Fault(
        f"request 2 b: kill b, start_with_clock b {_TEN_YEARS}; "
        f"request 4 d: kill d, start_with_clock d -{_TEN_YEARS}; "
        "request 8 b: kill b, start_again b"
    ),
    "a client's newest state is torn, and later copied back": Fault(
        "request 4 b: kill b, tear b, start_again b; request 8 a: copy_back b", _LONGER, True
    ),
    "a client returns after many rounds": Fault(
        "request 2 b: kill b; request 9 a: start_again b", _HURRY | _THREE, True
    ),
    "a second client is started in the directory of one": Fault(
        "request 4 b: start_one_more b b", log="b", says="must belong to one client"
    ),
    "another client calls itself as one does": Fault(
        "request 4 b: start_one_more b other; work 8 b: wait 20",
        log="server",
        says="it is called b, as b is",
    ),
    "the server is killed, and its sockets move": Fault("work 5 b: move_sockets, kill server"),
    "a client is slow, and one more is drawn than needed": Fault(
        "request 3 b: wait 2; request 6 b: wait 2", _THREE | {"num_spare_clients": 1}, True
    ),
}


class LeavesOut(InProcessEngine):
    """An engine where clients fail to report, as `absent` says by the number of the round."""

    absent: ClassVar[dict[int, list[int]]] = {}
    num_spare_clients = 0

    def asked(self, participation, seed, number, cohorts):  # noqa: D102
        self.reports = Reports(participation, seed, number, cohorts, self.num_spare_clients)
        return self.reports

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):  # noqa: D102
        absent = np.isin(cohort.ids, self.absent.get(int(round_.number), ()))
        if absent.any():
            self.reports.lose(cohort.ids[absent].tolist())
            return Outcome((), (), ~absent, {})
        return super().run_exchange(exchange, message, cohort, server_state, round_, evaluate)


@contextlib.contextmanager
def leaving_out(absent, num_spare_clients=0, engine=LeavesOut):
    """Lets simulations in process leave clients out, as it would be where these are elsewhere."""
    about = {"absent": absent, "num_spare_clients": num_spare_clients}
    with (
        mock.patch.multiple(engine, **about),
        mock.patch.object(in_process, "InProcessEngine", engine),
    ):
        yield


def harm_devices(
    scratch,
    data_dir="",
    seed=0,
    methods=("pflego", "ditto"),
    only="",
    results=ROOT / "results" / "devices_faults.json",
):
    """Harms a federation with each method in turn, and compares its end with a simulation's.

    The simulation leaves out the clients that the records of the federation say were left out.
    Faults that are in the results already with a good end are passed over; `only` is a part of the
    names of the others.
    """
    # As the programs do, before TensorFlow has run anything: sums have the same last bits then.
    engines.prepare_process(_SETTINGS["clients_per_round"])
    entries = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    done = [entry["fault"] for entry in entries if entry["good"]]
    for place, (what, fault) in enumerate(FAULTS.items()):
        if only not in what or what in done:
            continue
        settings = {"algorithm": methods[place % len(methods)], "seed": seed}
        settings = _SETTINGS | settings | (fault.settings or {})
        settings |= {"data_dir": data_dir} if data_dir else {}
        directory, began = scratch / str(place), time.time()
        federation = HarmedFederation(directory, fault.plan, settings)
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
        good = same and (left_out > 0) == fault.leaves_out
        good = good and (not fault.says or fault.says in federation.said(fault.log))
        entry = {"fault": what, "method": settings["algorithm"], "rounds": len(got[0])}
        entry |= {"left out": left_out, "starts of the server": federation.starts}
        entry |= {"seconds": round(seconds), "bits equal": same, "good": good}
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
    settings.pop("round_timeout", None)
    about = {"absent": absent, "num_spare_clients": settings.pop("num_spare_clients", 0)}
    config = RunConfig(**settings, engine="in_process", output_dir=str(directory / "simulation"))
    terminal.be_quiet(True)
    with leaving_out(**about):
        training.run(config)
    return end(directory / "simulation")
