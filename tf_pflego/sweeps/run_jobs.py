"""Makes runs of a sweep in turn in one process, and the program of that process.

`python -m tf_pflego.sweeps.run_jobs DIR CORES PARENT FILE.py:NAME`, where the last may be empty,
takes jobs as lines of JSON from standard input, and answers with lines about the runs. It ends with
its input, or when the process PARENT that started it has ended.
"""

import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tf_pflego.core.statistic_names import first_of
from tf_pflego.simulation.not_finite import NotFiniteError
from tf_pflego.sweeps import choice, experiments
from tf_pflego.sweeps.experiments import CHOSEN_BY, Experiment, plan_of
from tf_pflego.sweeps.filling import DamagedRunError, read_run
from tf_pflego.sweeps.store import RAW, SERVED
from tf_pflego.system import lock, log
from tf_pflego.system.signals import Interruption

FAILED = "failed"
LOG = "log.txt"
_SECONDS_TO_WAIT = 30


class Job(NamedTuple):
    """Runs that differ only in the seed."""

    cell: str
    trial: str | None  # None for runs that are reported
    settings: dict[str, Any]
    seeds: list[int]

    def place(self, root: pathlib.Path, seed: int) -> pathlib.Path:
        """Returns the directory of a run."""
        return root / RAW / self.cell / (self.trial or "") / f"seed{seed}"


class Outcome(NamedTuple):
    """How a run ended."""

    cell: str
    trial: str | None
    seed: int
    state: str  # finished, not finite or failed
    seconds: float
    message: str  # what it came to, on validation examples in a trial, or what it failed with


def make(
    job: Job,
    root: pathlib.Path,
    experiment: Experiment | None = None,
    between_steps: Callable[[], None] = lambda: None,
    tell: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Makes the runs of a job, or continues them. A failed run does not end the rest.

    The experiment has the user's own clients and model, if any. `tell` is called with each run that
    has ended, and `between_steps` is as in `training.run`.
    """
    # This imports TensorFlow, which other processes that use this module do without.
    from tf_pflego.runs import build
    from tf_pflego.simulation import feature_files

    outcomes = []
    kept = feature_files.kept_in(root / feature_files.NAME, is_shared=True)
    with build.shared_traces(), kept:
        for seed in job.seeds:
            started = time.monotonic()
            try:
                message, state = _run(job, seed, root, experiment, between_steps), choice.FINISHED
            except NotFiniteError as error:
                state = FAILED if job.trial is None else choice.NOT_FINITE
                message = _line(error)
            except Exception as error:
                state, message = FAILED, _line(error)
                with open(root / LOG, "a", encoding="utf-8") as file:
                    file.write(f"{job.cell} seed {seed}\n{traceback.format_exc()}\n")
            seconds = time.monotonic() - started
            outcomes.append(Outcome(job.cell, job.trial, seed, state, seconds, message))
            tell(outcomes[-1])
            if state == choice.NOT_FINITE:
                break  # It is not chosen, whatever the other seeds say.
    return outcomes


def _run(job, seed, root, experiment, between_steps):
    """Makes one run, and returns its result in words."""
    from tf_pflego.runs import training
    from tf_pflego.runs.resumption import RunDirectoryError

    place = job.place(root, seed)
    # A run whose sweep was killed ends after its round.
    lock.waited_for(place, _SECONDS_TO_WAIT).release()
    settings = job.settings | {"seed": seed}
    given = _given(experiment, settings)

    def run(**how):
        plan = dataclasses.replace(plan_of(settings, output_dir=str(place), **how), **given)
        return training.train(plan, between_steps=between_steps)

    with _quiet():
        try:
            summary = run(resume=True)
            read_run(place, settings["algorithm"])
        except (RunDirectoryError, DamagedRunError):  # Or it has other settings than it has now.
            summary = run(overwrite=True)
    first, is_trial = first_of(summary), job.trial is not None
    value = summary[first.metric(CHOSEN_BY if is_trial else SERVED)]
    return f"{'validation ' * is_trial}{first.title} {first.written(value)}"


def _given(experiment, settings):
    """Returns the clients and the model of a run that are the user's own, if they are."""
    if experiment is None:
        return {}
    clients, model = experiment.clients, experiment.model
    clients = clients(settings) if callable(clients) else clients
    model = model(settings, clients) if callable(model) else model
    return {"clients": clients, "model": model}


@contextlib.contextmanager
def _quiet():
    """Lets a run log only warnings, since the sweep logs its own progress."""
    before = log.LOG.level
    log.LOG.setLevel(max(log.LOG.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        log.LOG.setLevel(before)


def _line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def _prepare(cores, source):
    """Takes a number of cores, and returns the experiment FILE.py:NAME, if given."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # TensorFlow is running already.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(cores)
    return experiments.load_file(source)[0].experiment if source else None


def make_there(job: str, root: str, cores: int, source: str) -> list[Outcome]:
    """Makes a job, given as JSON, in a process of another machine (see `make`)."""
    return make(Job(*json.loads(job)), pathlib.Path(root), _prepare(cores, source))


def main(argv: Sequence[str]) -> int:
    """Makes the jobs of a process; see the head of the module."""
    root, cores, parent, source = pathlib.Path(argv[0]), int(argv[1]), int(argv[2]), argv[3]
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")  # It sends each line.
    os.dup2(2, 1)  # What libraries print goes to the log, as what they say on standard error does.
    experiment = _prepare(cores, source)
    with Interruption() as interruption:

        def between_steps():
            interruption.check()
            if os.getppid() != parent:
                raise KeyboardInterrupt  # Nobody waits for it any more.

        def tell(outcome):
            answers.write(json.dumps(outcome) + "\n")

        try:
            for line in sys.stdin:
                between_steps()  # From here on there is something to put in order.
                make(Job(*json.loads(line)), root, experiment, between_steps, tell)
                tell(None)
                between_steps()
        except (KeyboardInterrupt, BrokenPipeError):
            return 1
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # Nothing is left to do, and Python would free TensorFlow first.
