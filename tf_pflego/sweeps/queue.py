"""The queue of a sweep's runs: pending, running and finished."""

import collections
import pathlib
import threading
import time
from collections.abc import Sequence

from tf_pflego.sweeps import choice, filling, store
from tf_pflego.sweeps.choice import settings_tried
from tf_pflego.sweeps.experiments import Cell, Experiment, name_of
from tf_pflego.sweeps.filling import Run
from tf_pflego.sweeps.run_jobs import FAILED, Job, Outcome
from tf_pflego.sweeps.search import Search
from tf_pflego.system import log, texts


class Queue:
    """The jobs of a sweep. Threads take jobs from it, and report the end of runs.

    The reported runs of a cell come when all its trials have ended, with the chosen settings.
    """

    def __init__(self, experiment: Experiment, cells: Sequence[Cell], root: pathlib.Path):
        self.experiment, self.root = experiment, root
        self.failures: list[Outcome] = []
        self._cells = {cell.name: cell for cell in cells}
        # The settings that are tried of each cell, by their names; a search adds to its own.
        self._tried = {
            cell.name: {name_of(one): one for one in settings_tried(cell, experiment.budget)}
            for cell in experiment.planned
        }
        self._searches = {
            cell.name: Search(cell, experiment.budget) for cell in cells if cell.is_searched
        }
        self.store = filling.Store(root, experiment.planned, self._tried, experiment.columns)
        for cell in experiment.planned:
            if cell.is_searched and cell.name not in self._cells:  # Its trials stay.
                self._tried[cell.name] = {row["trial"]: {} for row in self.store.trials_of(cell)}
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
        """Returns the next job when it exists, or None when all are done."""
        with self._changed:
            while not self._waiting and self._running and not self._stopped:
                self._changed.wait()
            if not self._waiting or self._stopped:
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
                    tried = None if job.trial is None else self._tried[cell.name][job.trial]
                    run = Run(cell, tried, job.settings, outcome.seed)
                    self.store.add(run, job.place(self.root, outcome.seed), outcome.state)
                except filling.DamagedRunError as error:
                    outcome = outcome._replace(state=FAILED, message=str(error))
            skipped = len(job.seeds) - job.seeds.index(outcome.seed) - 1
            self.done += 1 + skipped * (outcome.state == choice.NOT_FINITE)
            self._made += 1
            name = " ".join(filter(None, (outcome.cell, outcome.trial, f"seed {outcome.seed}")))
            state = "" if outcome.state == choice.FINISHED else f"{outcome.state}: "
            what = f"{name}: {state}{outcome.message} ({outcome.seconds:.1f} s)"
            if outcome.state == FAILED:
                self.failures.append(outcome)
                log.warning(f"{what}")
            else:
                log.RUNS.info(f"{self.done}/{self.total}  {what}")
            self._show()

    def end(self, job: Job) -> None:
        """Reports that all runs of a job have ended."""
        with self._changed:
            self._running.remove(job)
            if job.trial is not None and not self._stopped:
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
            self._changed.notify_all()

    def left(self, cell: Cell) -> tuple[int, list[int]]:
        """Returns the number of pending trials' runs, and the seeds to be reported."""
        trials = self._planned(cell)
        for tried in self._tried[cell.name].values():
            rows = self._rows(cell, tried)
            ended = any(row["state"] != choice.FINISHED for row in rows)
            trials -= len(self.experiment.tuning_seeds) if ended else len(rows)
        settings = self._chosen(cell)
        seeds = [
            seed
            for seed in self.experiment.seeds
            if trials or settings is None or not self.store.has(Run(cell, None, settings, seed))
        ]
        return trials, seeds

    def _planned(self, cell):
        """Returns the number of runs of a cell's trials."""
        count = self.experiment.budget if cell.is_searched else len(self._tried[cell.name])
        return count * len(self.experiment.tuning_seeds)

    def _rows(self, cell, tried):
        """Returns the rows of a trial's runs that were made as the trial is now."""
        settings = self.experiment.settings_of_trial(cell, tried)
        runs = [Run(cell, tried, settings, seed) for seed in self.experiment.tuning_seeds]
        keys = {store.key_of(run.about) for run in runs if self.store.has(run)}
        return [row for row in self.store.trials_of(cell) if store.key_of(row) in keys]

    def _chosen(self, cell):
        """Returns the settings of a cell's reported runs, or None before the choice."""
        if not cell.choices:
            return cell.settings
        rows = [row for tried in self._tried[cell.name].values() for row in self._rows(cell, tried)]
        best = choice.best(cell, rows)
        return best and {**cell.settings, **best.settings}

    def _job(self, cell, tried):
        """Returns the job of a trial's missing runs, or None."""
        settings = self.experiment.settings_of_trial(cell, tried)
        rows = self._rows(cell, tried)
        if any(row["state"] != choice.FINISHED for row in rows):
            return None
        there = {int(row["seed"]) for row in rows}
        seeds = [seed for seed in self.experiment.tuning_seeds if seed not in there]
        return Job(cell.name, name_of(tried), settings, seeds) if seeds else None

    def _next_of_search(self, cell):
        """Returns the next trial of a search, or None at its end, or after a failed run."""
        search = self._searches[cell.name]
        while (tried := search.ask()) is not None:
            self._tried[cell.name][name_of(tried)] = tried
            if (job := self._job(cell, tried)) is not None:
                is_broken = any(outcome.cell == cell.name for outcome in self.failures)
                return None if is_broken else job
            (ended,) = choice.trials_of(cell, self._rows(cell, tried))
            search.tell(ended)
        return None

    def _begin(self, cell):
        """Queues the trials of a cell, or its reported runs if no trials are pending."""
        if cell.is_searched:
            jobs = [self._next_of_search(cell)]
        else:
            jobs = [self._job(cell, tried) for tried in self._tried[cell.name].values()]
        jobs = [job for job in jobs if job is not None]
        self._waiting += jobs
        trials, seeds = self.left(cell)
        self.done -= trials + len(seeds)
        if seeds and not jobs:
            self._report(cell, self._waiting.append)

    def _report(self, cell, put):
        """Queues the reported runs of a cell, unless trials of it are missing."""
        if any(job.cell == cell.name for job in (*self._waiting, *self._running)):
            return
        trials, seeds = self.left(cell)
        settings = self._chosen(cell)
        if seeds and settings is not None and not trials:
            put(Job(cell.name, None, settings, seeds))
        elif seeds:
            self.done += trials + len(seeds)
            log.warning(
                f"{cell.name} is not run, since its settings cannot be chosen before its trials "
                "have ended well"
            )

    def _show(self):
        left = ""
        if self._made:
            seconds = (time.monotonic() - self._started) / self._made * (self.total - self.done)
            left = f", about {texts.duration(seconds)} left"
        names = ", ".join(dict.fromkeys(job.cell for job in self._running))
        if names and self.done < self.total:
            log.debug(f"{self.done} of {self.total} runs done{left}; running {names}")
