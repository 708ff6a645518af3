"""The drill on long runs: no step may take more than the steps before it."""

import time

import psutil
from drill_runs import rounds_of, start

_PARTS = 6
_SMALL = "--dataset=digits", "--num_clients=6", "--clients_per_round=2", "--engine=in_process"
_MORE = {"seconds of CPU per step": 1.2, "MB of memory": 1.05, "descriptors": 1.2}


def watch(scratch, data_dir="", rounds=3000, runs=200):
    """Watches a run of many rounds, and a sweep of many runs of one round.

    Each is in six parts. After the second one, which is shown first, a step may take a fifth more
    time at most, and the program 5% more memory and a fifth more descriptors.
    """

    def runs_of(output):
        table = output / "runs.csv"
        return table.read_bytes().count(b"\n") - 1 if table.exists() else 0

    seeds = ",".join(map(str, range(runs)))
    sweep = ["sweep", "--algorithm=pflego", "--num_rounds=1", f"--seeds={seeds}"]
    long = ["--num_rounds", str(rounds)]
    cases = ("rounds of a run", rounds, long, rounds_of), ("runs of a sweep", runs, sweep, runs_of)
    for name, steps, flags, done in cases:
        output, first, before = scratch / name, None, None
        running = start([*flags, *_SMALL, f"--data_dir={data_dir}"], output)
        process = psutil.Process(running.pid)
        for end in range(steps // _PARTS, steps, steps // _PARTS):
            while running.poll() is None and done(output) < end:
                time.sleep(0.05)
            used, number = sum(process.cpu_times()[:4]), done(output)
            if before is not None:
                per_step = (used - before[0]) / (number - before[1])
                found = per_step, process.memory_info().rss / 1e6, process.num_fds()
                first = first or found
                limits = zip(found, first, _MORE.values(), strict=True)
                shown = zip(_MORE, (f"{value:.4g}" for value in found), strict=True)
                good = all(value <= least * more for value, least, more in limits)
                yield {"steps": f"{name} to {number}", **dict(shown)}, good
            before = used, number
        running.communicate()
