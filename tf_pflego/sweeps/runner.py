"""Runs a sweep: what is to be done, who does it, and what is known of it."""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tf_pflego.sweeps import choice, results, store, work
from tf_pflego.sweeps.definition import Cell, Experiment, method_name, name_of
from tf_pflego.sweeps.search import Search
from tf_pflego.sweeps.work import FAILED, Job, Outcome
from tf_pflego.system import durable, terminal, texts, values
from tf_pflego.system.lock import DirectoryLock, InUseError

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 4


def sweep(
    experiment: Experiment,
    output_dir: str | os.PathLike,
    *,
    jobs: int = 1,
    clients: Any = None,
    model: Any = None,
    ray_address: str = "",
    only: Sequence[str] | None = None,
    source: str = "",
    between_steps: Callable[[], None] = lambda: None,
) -> results.Sweep:
    """Makes the runs of an experiment, except those that are made, and its tables and figures.

    A second call with the same directory goes on where the first was interrupted, and makes what
    has changed in the experiment.

    Args:
      experiment: What is run.
      output_dir: The directory of its files; `tf_pflego.sweeps.store` says what they are.
      jobs: How many runs go on side by side, each in a process with its part of the cores. With 1
        they are in this process.
      clients: The `clients` of the experiment, if they are not in it.
      model: Its `model`.
      ray_address: The address of a running Ray cluster, whose nodes have the directory too, to run
        `jobs` runs at a time there; empty for this machine.
      only: The names of the cells that are run; None for all.
      source: FILE.py:NAME of the experiment, from which other processes get its own clients and
        model.
      between_steps: Called again and again where nothing is half done; it may raise
        `KeyboardInterrupt`, which ends the runs with checkpoints.

    Returns:
      What has come out, of failed runs too: they are named, and are made again by the next call.

    Raises:
      TypeError, ValueError: An argument does not take its value, or the directory is in use.
    """
    values.instance("experiment", experiment, Experiment, "Make one: `Experiment(cells, base)`.")
    jobs = values.whole("jobs", jobs, 1, 1000)
    changes = {"clients": clients, "model": model}
    changes = {name: value for name, value in changes.items() if value is not None}
    experiment = dataclasses.replace(experiment, **changes)
    is_own = experiment.clients is not None or experiment.model is not None
    beside = jobs > 1 or bool(ray_address)
    if beside and not source and (is_own or any(map(_is_function, experiment.planned))):
        raise ValueError(
            "`jobs` must be 1 where clients, a model or a method are given as Python objects, "
            f"which other processes cannot have; got {jobs}. Define the experiment in a file, and "
            "run `tf-pflego sweep FILE.py --jobs=N`."
        )
    root = pathlib.Path(values.path("output_dir", output_dir)).expanduser()
    with _locked(root):
        results.describe(root, experiment)
        cells = [cell for cell in experiment.planned if only is None or cell.name in only]
        queue = Queue(experiment, cells, root)
        try:
            if queue.total > queue.done:
                if beside:
                    _beside(queue, jobs, source * is_own, ray_address, between_steps)
                else:
                    _one_by_one(queue, between_steps)
        finally:
            terminal.done()
        outcome = results.load(root)
        redraw(outcome, experiment)
    if queue.failures:
        terminal.say(
            f"tf_pflego: {texts.counted(len(queue.failures), 'run')} failed, which the same "
            f"command makes again; {root / work.LOG} has more"
        )
    outcome.failures = queue.failures
    return outcome


def shown(outcome: results.Sweep, experiment: Experiment) -> dict[str, bytes]:
    """Returns the tables and figures of a sweep, by the names of their files."""
    from tf_pflego.sweeps import tables

    return dict((experiment.show or tables.files_of)(outcome)) if outcome.rows else {}


def redraw(outcome: results.Sweep, experiment: Experiment) -> list[pathlib.Path]:
    """Writes the tables and figures of a sweep from its files, and returns their paths."""
    written = {outcome.path / name: one for name, one in shown(outcome, experiment).items()}
    with durable.batch() as files:
        for path, content in written.items():
            with files.open(path) as stream:
                stream.write(content)
    return list(written)


@contextlib.contextmanager
def _locked(root):
    try:
        lock = DirectoryLock(root)
    except InUseError as error:
        raise ValueError(
            f"`output_dir` must not be in use; another sweep writes to {root} ({error}). Wait for "
            "its end, or choose another `output_dir`."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _is_function(cell):
    return not isinstance(cell.settings["algorithm"], str)


class Queue:
    """What is to be done of a sweep; threads take jobs from it, and say how runs have ended.

    The runs of a cell that are reported come when all its trials have ended, with what is chosen.
    """

    def __init__(self, experiment: Experiment, cells: Sequence[Cell], root: pathlib.Path):
        self.experiment, self.root = experiment, root
        self.failures: list[Outcome] = []
        self._cells = {cell.name: cell for cell in cells}
        # The settings that are tried of each cell, by their names; a search adds to its own.
        self._tried = {
            cell.name: {name_of(one): one for one in experiment.settings_tried(cell)}
            for cell in experiment.planned
        }
        self._searches = {
            cell.name: Search(cell, experiment.budget) for cell in cells if cell.is_searched
        }
        self._store = store.Store(root, experiment.planned, self._tried, experiment.columns)
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: list[Job] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._started, self._made = time.monotonic(), 0
        self.total = sum(self._planned(cell) + len(experiment.seeds) for cell in cells)
        self.done = self.total
        for cell in cells:
            self._begin(cell)

    def take(self) -> Job | None:
        """Returns the next job when there is one; None when all are done."""
        with self._changed:
            while not self._waiting and self._running:
                self._changed.wait()
            if not self._waiting:
                return None
            job = self._waiting.popleft()
            self._running.append(job)
            self._show()
            return job

    def add(self, outcome: Outcome) -> None:
        """Adds a run that has ended to the files, unless it failed."""
        with self._changed:
            if self._stopped and outcome.state == FAILED:
                return  # Its process was told to end.
            cell = self._cells[outcome.cell]
            (job,) = [one for one in self._running if one[:2] == outcome[:2]]
            if outcome.state != FAILED:
                try:
                    self._keep(cell, job, outcome)
                except store.DamagedRunError as error:
                    durable.remove(job.place(self.root, outcome.seed))
                    outcome = outcome._replace(state=FAILED, message=f"{error}; it is removed")
            skipped = len(job.seeds) - job.seeds.index(outcome.seed) - 1
            self.done += 1 + skipped * (outcome.state in (choice.PRUNED, choice.NOT_FINITE))
            self._made += 1
            what = f"{_title(outcome)}: {_said(outcome)} ({outcome.seconds:.1f} s)"
            if outcome.state == FAILED:
                self.failures.append(outcome)
                terminal.say(f"tf_pflego: {what}")
            else:
                terminal.note(f"{self.done}/{self.total}  {what}")
            self._show()

    def end(self, job: Job) -> None:
        """Says that all runs of a job have ended."""
        with self._changed:
            self._running.remove(job)
            if job.trial is not None:
                # It goes first, so that an interruption leaves cells that are whole.
                put = self._waiting.appendleft
                cell = self._cells[job.cell]
                following = self._next_of_search(cell) if cell.is_searched else None
                if following is None:
                    self._report(cell, put)
                else:
                    put(following)
            self._changed.notify_all()

    def stop(self) -> None:
        """Lets no job begin any more."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def left(self, cell: Cell) -> tuple[int, list[int]]:
        """Returns how many runs of trials are to be made, and the seeds to be reported."""
        trials = self._planned(cell)
        for name in self._tried[cell.name]:
            rows = self._rows(cell, name)
            ended = any(row["state"] != choice.FINISHED for row in rows)
            trials -= len(self.experiment.tuning_seeds) if ended else len(rows)
        settings = self._chosen(cell)
        seeds = [
            seed
            for seed in self.experiment.seeds
            if trials or settings is None or not self._store.has(cell, seed, _flags(settings, seed))
        ]
        return trials, seeds

    def _planned(self, cell):
        """Returns how many runs the trials of a cell are."""
        count = self.experiment.budget if cell.is_searched else len(self._tried[cell.name])
        return count * len(self.experiment.tuning_seeds)

    def _rows(self, cell, trial):
        """Returns the rows of a trial's runs that were made as the trial is now."""
        settings = self.experiment.settings_of_trial(cell, self._tried[cell.name][trial])
        return [
            row
            for row in self._store.trials_of(cell)
            if row["trial"] == trial
            and int(row["seed"]) in self.experiment.tuning_seeds
            and store.is_made_with(row, _flags(settings, row["seed"]))
        ]

    def _chosen(self, cell):
        """Returns the settings of what is reported of a cell; None if none of its trials is."""
        if not cell.choices:
            return cell.settings
        rows = [row for trial in self._tried[cell.name] for row in self._rows(cell, trial)]
        best = choice.best(cell, rows)
        return best and {**cell.settings, **best.settings}

    def _job(self, cell, trial, curves=()):
        """Returns the job of the runs of a trial that are not there; None if none is to be made."""
        settings = self.experiment.settings_of_trial(cell, self._tried[cell.name][trial])
        rows = self._rows(cell, trial)
        if any(row["state"] != choice.FINISHED for row in rows):
            return None
        there = {int(row["seed"]) for row in rows}
        seeds = [seed for seed in self.experiment.tuning_seeds if seed not in there]
        return Job(cell.name, trial, settings, seeds, curves) if seeds else None

    def _next_of_search(self, cell):
        """Returns the next trial of a search; None at its end, or if a run of it has failed."""
        search = self._searches[cell.name]
        while (tried := search.ask()) is not None:
            trial = name_of(tried)
            self._tried[cell.name][trial] = tried
            curves = self._store.curves_of(cell, self.experiment.tuning_seeds[0])
            if (job := self._job(cell, trial, curves)) is not None:
                is_broken = any(outcome.cell == cell.name for outcome in self.failures)
                return None if is_broken else job
            (ended,) = choice.trials_of(cell, self._rows(cell, trial))
            search.tell(ended.accuracy)
        return None

    def _begin(self, cell):
        """Puts the trials of a cell into the queue, or what is reported if it has none to make."""
        if cell.is_searched:
            jobs = [self._next_of_search(cell)]
        else:
            jobs = [self._job(cell, trial) for trial in self._tried[cell.name]]
        jobs = [job for job in jobs if job is not None]
        self._waiting += jobs
        trials, seeds = self.left(cell)
        self.done -= trials + len(seeds)
        if seeds and not jobs:
            self._report(cell, self._waiting.append)

    def _report(self, cell, put):
        """Puts what is reported of a cell into the queue, unless trials of it are missing."""
        if any(job.cell == cell.name for job in (*self._waiting, *self._running)):
            return
        trials, seeds = self.left(cell)
        settings = self._chosen(cell)
        if seeds and settings is not None and not trials:
            put(Job(cell.name, None, settings, seeds))
        elif seeds:
            self.done += trials + len(seeds)
            terminal.say(
                f"tf_pflego: {cell.name} is not run, since nothing can be chosen for it before its "
                "trials have ended well"
            )

    def _keep(self, cell, job, outcome):
        place, flags = job.place(self.root, outcome.seed), _flags(job.settings, outcome.seed)
        if job.trial is None:
            self._store.add_run(cell, outcome.seed, place, flags)
        else:
            tried = self._tried[cell.name][job.trial]
            self._store.add_trial(cell, job.trial, tried, outcome.seed, place, flags, outcome.state)

    def _show(self):
        left = ""
        if self._made:
            seconds = (time.monotonic() - self._started) / self._made * (self.total - self.done)
            left = f", about {texts.duration(seconds)} left"
        names = ", ".join(dict.fromkeys(job.cell for job in self._running))
        if names:
            terminal.doing(f"{self.done} of {self.total} runs done{left}; running {names}")


def _flags(settings, seed):
    algorithm = method_name(settings["algorithm"])
    return store.flags_of({**settings, "algorithm": algorithm, "seed": seed})


def _place_of(builder):
    """Returns FILE.py:FUNCTION of a method of the user's own, for another process."""
    return f"{builder.__globals__['__file__']}:{builder.__qualname__}"


def _title(outcome):
    trial = f" {outcome.trial}" if outcome.trial else ""
    return f"{outcome.cell}{trial} seed {outcome.seed}"


def _said(outcome):
    if outcome.accuracy is None:
        return f"{outcome.state}: {outcome.message}"
    kind = "accuracy" if outcome.trial is None else "validation accuracy"
    pruned = f"{outcome.state}, " * (outcome.state == choice.PRUNED)
    return f"{pruned}{kind} {outcome.accuracy:.4f}"


def _one_by_one(queue, between_steps):
    while (job := queue.take()) is not None:
        between_steps()
        work.make(job, queue.root, queue.experiment, between_steps, queue.add)
        queue.end(job)


class _Process:
    """A process that makes one job after the other."""

    def __init__(self, root, cores, source):
        self._arguments = [str(root), str(cores), *([source] if source else [])]
        self._log = open(root / work.LOG, "ab")
        self._process = None

    def make(self, job, tell):
        """Makes a job; if the process ends on the way, the runs that are left have failed."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tf_pflego.sweeps.work", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        left = list(job.seeds)
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(job, default=_place_of), file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer is None:
                return
            tell(Outcome(*answer))
            left.remove(answer[2])
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        for seed in left:
            tell(Outcome(job.cell, job.trial, seed, FAILED, 0.0, None, f"its process got {how}"))

    def close(self):
        """Ends the process; a run in it writes a checkpoint first."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)
            self._process.kill()
            self._process.wait()
        self._log.close()


def _beside(queue, jobs, source, ray_address, between_steps):
    """Runs the jobs of a queue, so many at a time, each by a thread that waits for it."""
    cores = max(1, (os.cpu_count() or 1) // jobs)
    if ray_address:
        from tf_pflego.sweeps.on_ray import workers_of

        workers = workers_of(queue.root, jobs, source, ray_address)
    else:
        workers = [_Process(queue.root, cores, source) for _ in range(jobs)]

    def run(worker):
        while (job := queue.take()) is not None:
            worker.make(job, queue.add)
            queue.end(job)

    threads = [threading.Thread(target=run, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            between_steps()
            threads[0].join(_POLL_SECONDS)
            time.sleep(0 if threads[0].is_alive() else _POLL_SECONDS)
    finally:
        queue.stop()
        for worker in workers:
            worker.close()
