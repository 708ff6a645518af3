"""The drill that sends signals to runs, and checks that each run ends within seconds, in order.

Small runs on digits get SIGINT or SIGTERM at a random time of a phase:

  start-up    from the first instant when the program handles signals
  tracing     in the first round, when functions are traced
  rounds      between the third round and some hundredths of a second later
  long round  in a round of 10^9 local steps, a single call of TensorFlow or of the worker
  evaluation  in runs that do little else
  writing     while a checkpoint, or the files of a finished run, are being written

A run must end within 5 seconds with exit code 128 + the signal, and print only the one line, which
must promise a resumption if there is a checkpoint. It must leave no process, temporary file, lock
or damaged checkpoint. A line per run goes to standard error. A phase without a signal has not been
tried.
"""

import concurrent.futures
import fnmatch
import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil
from drill_runs import rounds_of, start

from tf_pflego.program import terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FLAGS = ("--dataset=digits", "--clients_per_round=5", "--checkpoint_every=5", "--num_clients=20")
_ENDLESS, _RARELY = "--num_rounds=1000000", "--eval_every=1000000"
_LIMIT_SECONDS, _START_SECONDS, _END_SECONDS, _GONE_SECONDS = 5.0, 300.0, 60.0, 5.0
_POLL_SECONDS = 0.0005
_TRIES = 10
_HINT = "; go on with it by --resume"


class Phase(NamedTuple):
    """When a signal is sent."""

    flags: tuple[str, ...]
    reached: Callable[[int, pathlib.Path], bool]  # of the process id and the output directory
    longest_delay: float  # seconds from then on, of which a random part is waited
    is_short: bool = False  # The process is stopped, and must still be there then.


class Ending(NamedTuple):
    """How a run ended."""

    seconds: float
    hint: bool
    faults: list[str]


def _hears(pid, output):
    """Returns whether the program has its handlers: Python alone has none for SIGTERM."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def _files(output):
    """Returns the names of the files. Directories may be made and renamed meanwhile."""
    return [name for _, _, files in os.walk(output) for name in files]


def _has_checkpoint(pid, output):
    return bool(fnmatch.filter(_files(output), "checkpoint-*.json"))


def _has_three_rounds(pid, output):
    return rounds_of(output) >= 3


def _writes(pid, output):
    """Returns whether a file is half written, or the files of the end are not all there."""
    files = _files(output)
    ending = "clients.csv" in files and "summary.json" not in files
    partial = ending or fnmatch.filter(files, ".*.partial")
    return bool(partial and fnmatch.filter(files, "checkpoint-*.json"))


_ONE_AFTER_THE_OTHER = ("--num_clients=150", "--clients_per_round=1", "--local_steps=1")
PHASES = {
    "start-up": Phase((_ENDLESS,), _hears, 4.0),
    "tracing": Phase((_ENDLESS,), _has_checkpoint, 0.5),
    "rounds": Phase((_ENDLESS, _RARELY), _has_three_rounds, 0.5),
    "long round": Phase((_ENDLESS, _RARELY, "--local_steps=1000000000"), _has_checkpoint, 3.0),
    "evaluation": Phase((_ENDLESS, *_ONE_AFTER_THE_OTHER), _has_three_rounds, 0.5),
    "writing": Phase(("--num_rounds=4",), _writes, 0.0, is_short=True),
}


def send_signals(
    scratch,
    data_dir="",
    seed=0,
    signals=200,
    at_once=2,
    engines=("in_process", "tff"),
    phases=tuple(PHASES),
):
    """Sends the signals, and yields a row for each phase, engine and signal."""
    cases = list(itertools.product(phases, engines, _SIGNALS))
    rng = random.Random(seed)
    cycle = itertools.islice(itertools.cycle(cases), signals)
    drawn = [(case, rng.random()) for case in cycle]
    endings = {case: [] for case in cases}

    def run(place):
        case, share = drawn[place]
        ending = ending_of(*case, share, scratch / str(place), data_dir)
        endings[case].append(ending)
        phase, engine, number = case
        fault = "; ".join(ending.faults) or "in order"
        terminal.say(f"{phase}, {engine}, {number.name}: {ending.seconds:.2f} s, {fault}")
        shutil.rmtree(scratch / str(place))

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, range(len(drawn))))
    for (phase, engine, number), these in endings.items():
        good = sum(not ending.faults for ending in these)
        longest = max((ending.seconds for ending in these), default=0)
        row = {"phase": phase, "engine": engine, "signal": number.name, "sent": len(these)}
        row |= {"in order": good, "with hint": sum(ending.hint for ending in these)}
        yield row | {"longest seconds": f"{longest:.2f}"}, good == len(these) if these else None


def ending_of(
    phase: str,
    engine: str,
    number: signal.Signals,
    share: float,
    scratch: pathlib.Path,
    data_dir: str = "",
    limit_seconds: float = _LIMIT_SECONDS,
) -> Ending:
    """Runs the program, sends it a signal after this share of the longest delay, and tells its end.

    The files are in `scratch`, which does not exist yet.
    """
    for attempt in range(_TRIES):
        ending = _attempt(PHASES[phase], engine, number, share, scratch / str(attempt), data_dir)
        if ending is not None:
            if ending.seconds > limit_seconds:
                ending.faults.append(f"it took {ending.seconds:.2f} seconds")
            return ending
    return _failed(f"the phase was missed {_TRIES} times")


def _failed(fault):
    return Ending(0.0, False, [fault])


def _attempt(phase, engine, number, share, scratch, data_dir):
    """Returns None if the phase was over before the signal could be sent."""
    output, temporary = scratch / "run", scratch / "temporary"
    temporary.mkdir(parents=True)
    flags = [*_FLAGS, *phase.flags, f"--engine={engine}", f"--data_dir={data_dir}"]
    running = start(flags, output, os.environ | {"TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + _START_SECONDS
        while running.poll() is None and not _is_in(phase, running, share, output):
            if time.monotonic() > deadline:
                return _failed(f"the phase did not begin within {_START_SECONDS:.0f} seconds")
            time.sleep(_POLL_SECONDS)
        if running.poll() is not None:
            fault = f"it ended by itself, and said {running.stderr.read()}"
            return None if phase.is_short else _failed(fault)
        running.send_signal(number)
        running.send_signal(signal.SIGCONT)
        sent = time.monotonic()
        _, said = running.communicate(timeout=_END_SECONDS)
        seconds = time.monotonic() - sent
    except subprocess.TimeoutExpired:
        return _failed("it did not end")
    finally:
        running.kill()
        running.communicate()
    faults = _faults(said, running.returncode, number, output, temporary)
    return Ending(seconds, _HINT in said, faults)


def _is_in(phase, running, share, output):
    """Returns whether a run is where the signal is to be sent, and stops it in a short phase."""
    if not phase.reached(running.pid, output):
        return False
    time.sleep(share * phase.longest_delay)
    if not phase.is_short:
        return True
    running.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, running.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if running.poll() is None and phase.reached(running.pid, output):
        return True
    running.send_signal(signal.SIGCONT)
    return False


def _faults(said, code, number, output, temporary):
    """Returns the fault of an ending."""
    faults = [] if code == 128 + number else [f"exit code {code}"]
    lines = [line for line in said.splitlines() if not line.startswith(("starting ", "round "))]
    saved = _has_checkpoint(None, output)
    hints = [_HINT]
    if not saved:  # The first moments of the program do not know where the run would be.
        hints = ["", " without a checkpoint; nothing was kept to go on with"]
    if lines not in [[f"tf_pflego: interrupted{hint}"] for hint in hints]:
        faults.append(f"it said {lines}")
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := _processes_with(temporary)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if left:
        faults.append(f"processes are left: {left}")
    faults += [f"left: {path}" for path in (*temporary.rglob("*"), *output.rglob(".*"))]
    return faults + (_damages(output) if saved else [])


def _processes_with(temporary):
    """Returns the processes of this user whose TMPDIR is the directory."""
    found = psutil.process_iter(["environ"])  # It is None of those that have ended.
    return [one.pid for one in found if (one.info["environ"] or {}).get("TMPDIR") == str(temporary)]


def _damages(output):
    """Returns what is wrong with the checkpoints; all of them, not only the newest, are read."""
    from tf_pflego.simulation.checkpoint import CheckpointError, Checkpoints, DamagedError

    checkpoints = Checkpoints(output / "checkpoints")
    try:
        for path in checkpoints._manifests():
            checkpoints._verified(path)
    except (CheckpointError, DamagedError, OSError) as error:
        return [str(error)]
    return []
