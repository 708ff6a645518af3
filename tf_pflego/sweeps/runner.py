"""Runs a sweep: its queue, its processes and its store."""

import concurrent.futures
import os
import pathlib
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tf_pflego.algorithms import own_methods
from tf_pflego.sweeps import processes, results, run_jobs
from tf_pflego.sweeps.experiments import Cell, Experiment
from tf_pflego.sweeps.queue import Queue
from tf_pflego.system import durable, errors, log, texts, values
from tf_pflego.system.lock import taken
from tf_pflego.system.source import source_commit

_POLL_SECONDS = 0.1
_PACKAGE = pathlib.Path(__file__).parents[1]


def sweep(
    experiment: Experiment,
    output_dir: str | os.PathLike,
    *,
    jobs: int = 1,
    ray_address: str = "",
) -> results.Sweep:
    """Makes the runs of an experiment, except those that are made, and its tables and figures.

    A second call with the same directory continues where the first was interrupted, and makes the
    changed runs of the experiment.

    Args:
      experiment: The experiment to run.
      output_dir: The directory of its files, which `tf_pflego.sweeps.store` lists.
      jobs: How many runs go on side by side, each in a process with its part of the cores. With 1
        they are in this process.
      ray_address: The address of a running Ray cluster with nodes that share the directory, to run
        `jobs` runs at a time there; empty for this machine.

    Returns:
      The results. Failed runs are named there, and are made again by the next call.

    Raises:
      TypeError, ValueError: An argument does not take its value, or the directory is in use.

    Example, explained in docs/sweeps.md:
      >>> cells = pfl.grid(algorithm=["fedavg", "local"])
      >>> experiment = pfl.Experiment(cells, base, clients=clients, model=model)
      >>> pfl.sweep(experiment, "runs/compared")  # makes only the runs that are missing
      Sweep(runs/compared, 2 cells, 2 runs reported)
    """
    values.instance("experiment", experiment, Experiment, "Make one: `Experiment(cells, base)`.")
    return make(experiment, output_dir, jobs, ray_address)


def make(
    experiment: Experiment,
    output_dir: str | os.PathLike,
    jobs: int = 1,
    ray_address: str = "",
    cells: Sequence[Cell] | None = None,
    source: str = "",
    between_steps: Callable[[], None] = lambda: None,
) -> results.Sweep:
    """Makes the runs of all cells or of some (see `sweep`).

    `source` is FILE.py:NAME of the experiment, for other processes that need its clients and model.
    `between_steps` is called repeatedly at points without half-finished work. It may raise
    `KeyboardInterrupt`, which ends the runs with checkpoints.
    """
    jobs, ray_address = values.whole("jobs", jobs, 1, 1000), values.text("ray_address", ray_address)
    is_own = experiment.clients is not None or experiment.model is not None
    is_own_method = any(not isinstance(c.settings["algorithm"], str) for c in experiment.planned)
    beside = jobs > 1 or bool(ray_address)
    if beside and not source and (is_own or is_own_method):
        raise ValueError(
            "`jobs` must be 1 where clients, a model or a method are given as Python objects, "
            f"which other processes cannot have; got {jobs}. Define the experiment in a file, and "
            "run `tf-pflego sweep FILE.py --jobs=N`."
        )
    root = pathlib.Path(values.path("output_dir", output_dir, may_be_empty=False)).expanduser()
    with taken(root, "sweep"):
        queue = Queue(experiment, experiment.planned if cells is None else cells, root)
        if queue.total > queue.done:
            refuse_changed(root)
        results.describe(root, experiment)
        try:
            if beside and queue.total > queue.done:
                _beside(queue, jobs, source * is_own, ray_address, between_steps)
            else:
                while (job := queue.take()) is not None:
                    between_steps()
                    run_jobs.make(job, root, experiment, between_steps, queue.add)
                    queue.end(job)
        finally:  # What was made before an interrupt is in the files too.
            queue.store.write_files()
        log.debug("drawing tables and figures")
        outcome = results.load(root)
        redraw(outcome, experiment)
    if queue.failures:
        log.warning(
            f"{texts.counted(len(queue.failures), 'run')} failed, which the same "
            f"command makes again; {root / run_jobs.LOG} has more"
        )
    outcome.failures = queue.failures
    return outcome


def shown(outcome: results.Sweep, experiment: Experiment) -> dict[str, bytes]:
    """Returns the tables and figures of a sweep, by the names of their files."""
    from tf_pflego.sweeps import tables

    try:
        return dict((experiment.show or tables.files_of)(outcome)) if outcome.rows else {}
    except Exception as error:
        if errors.is_ours(error):
            raise
        _, (frame, _), *_ = traceback.walk_tb(error.__traceback__)
        must = "must return the contents of files by their names, from runs that are all kept"
        raise own_methods.failed(must, frame.f_code.co_filename, error, "show") from error


def redraw(outcome: results.Sweep, experiment: Experiment) -> list[pathlib.Path]:
    """Writes the tables and figures of a sweep from its files, and returns their paths."""
    written = {outcome.path / name: one for name, one in shown(outcome, experiment).items()}
    with durable.batch() as files:
        for path, content in written.items():
            with files.open(path) as stream:
                stream.write(content)
    return list(written)


def refuse_changed(root: pathlib.Path, package: pathlib.Path = _PACKAGE) -> None:
    """Raises ValueError if runs for `results` of the package's repository are from no commit."""
    commit = source_commit(package) or ""
    is_result = root.resolve().is_relative_to(package.parent.resolve() / "results")
    if is_result and commit.endswith("+changes"):
        raise ValueError(
            f"`output_dir` must be outside of {package.parent / 'results'} while the package "
            f"differs from its commit, which could not make the runs again; got {root} at "
            f"{commit}. Commit the changes, or choose another `output_dir`."
        )


def _beside(queue, jobs, source, ray_address, between_steps):
    """Runs the jobs of a queue, a few at a time, each by a thread that waits for it."""
    cores = max(1, (os.cpu_count() or 1) // jobs)
    if ray_address:
        workers: list[Any] = [processes.OnRay(queue.root, cores, source, ray_address)] * jobs
    else:
        workers = [processes.Process(queue.root, cores, source) for _ in range(jobs)]

    def run(worker):
        while (job := queue.take()) is not None:
            worker.make(job, queue.add)
            queue.end(job)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(run, worker) for worker in workers}
        try:
            while waiting:
                between_steps()
                done, waiting = concurrent.futures.wait(
                    waiting, _POLL_SECONDS, concurrent.futures.FIRST_EXCEPTION
                )
                for future in done:
                    future.result()
        finally:
            queue.stop()
            for worker in set(workers):
                worker.end()
            for worker in set(workers):
                worker.close()
