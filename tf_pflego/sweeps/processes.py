"""Other processes that make the jobs of a sweep: on this machine, or on a Ray cluster."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from tf_pflego.sweeps import run_jobs
from tf_pflego.sweeps.run_jobs import FAILED, Job, Outcome

_GRACE_SECONDS = 4

Tell = Callable[[Outcome], None]


class Process:
    """A process that makes jobs in turn, with a number of cores.

    `source` is FILE.py:NAME of the experiment, if its clients or its model are its own.
    """

    def __init__(self, root: pathlib.Path, cores: int, source: str):
        self._arguments = [str(root), str(cores), str(os.getpid()), source]
        self._log = open(root / run_jobs.LOG, "ab")
        self._process: Any = None
        # Its thread may be about to start a process when the sweep ends it.
        self._starting, self._has_ended = threading.Lock(), False

    def make(self, job: Job, tell: Tell) -> None:
        """Makes a job. If the process ends during it, its remaining runs have failed."""
        with self._starting:
            if self._has_ended:
                return
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tf_pflego.sweeps.run_jobs", *self._arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    text=True,
                    bufsize=1,  # It sends each line.
                    start_new_session=True,  # Ctrl-C is for the sweep, which ends this process.
                )
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(job, default=place_of) + "\n")
        left = list(job.seeds)
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer is None:
                return
            tell(Outcome(*answer))
            left.remove(answer[2])
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        _failed(job, left, f"its process ended with {how}", tell)

    def end(self) -> None:
        """Ends the process. A run in it writes a checkpoint first."""
        with self._starting:
            self._has_ended = True
            if self._process is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()  # One without a job ends by it at once.
                self._process.terminate()

    def close(self) -> None:
        """Waits for the end of the process, and forces it."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
            self._process.kill()
            self._process.wait()
        self._log.close()


class OnRay:
    """A Ray cluster with the sweep's directory on its nodes, which makes jobs in parallel."""

    def __init__(self, root: pathlib.Path, cores: int, source: str, address: str):
        from tf_pflego.ray.remote_tasks import Tasks  # Ray is needed for nothing else.

        self._tasks = Tasks(address, cores)
        self._arguments = str(root), cores, source

    def make(self, job: Job, tell: Tell) -> None:
        """Makes a job. The results of its runs are known when all have ended."""
        try:
            outcomes = self._tasks.call(
                run_jobs.make_there, json.dumps(job, default=place_of), *self._arguments
            )
        except Exception as error:
            _failed(job, job.seeds, " ".join(str(error).split()), tell)
            return
        for outcome in outcomes:
            tell(Outcome(*outcome))

    def end(self) -> None:
        """Leaves the cluster, which ends what runs there."""
        self._tasks.close()

    def close(self) -> None:
        """Does nothing more."""


def _failed(job, seeds, message, tell):
    for seed in seeds:
        tell(Outcome(job.cell, job.trial, seed, FAILED, 0.0, message))


def place_of(builder: Any) -> str:
    """Returns FILE.py:FUNCTION of a method of the user's own, for another process."""
    return f"{builder.__globals__['__file__']}:{builder.__qualname__}"
