"""Plants bugs, one at a time in a copy of the tree, and says which test of `make test` finds each.

    .venv/bin/python -m tests.planted_bugs [PART OF A NAME ..]

The tests of the bug's module run first, then its package's, then all of `make test`, until one
fails. A bug that none of them finds is tried with all tests of its package. The exit status is 1 if
a bug is found by none, or if the line that it changes is no longer there.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
# (module, what stands there, the bug in its place)
BUGS = (
    ("system/durable", "            partial.unlink(missing_ok=True)\n\n\n@",
     "            pass\n\n\n@"),
    ("system/values", "below is not None and value >= below",
     "below is not None and value > below"),
    ("core/seeds", "np.asarray(client_ids)]", "np.arange(len(client_ids))]"),
    ("core/participation", 'f"participation/{cohort}", round_number', 'f"participation/{cohort}"'),
    ("core/participation", "mean * (1.0 - self.client_dropout)", "mean"),
    ("models/heads/corrected", "tf.maximum(known, 1.0) ** growth", "known**growth"),
    ("models/blocks", "first, last = k * size, tf.minimum((k + 1)",
     "first, last = k, tf.minimum((k + 1)"),
    ("data/labels", " & (array == np.floor(array))", ""),
    ("data/dealing", "counts.max() > 1", "counts.max() > 2"),
    ("data/partitions/dirichlet", "cuts[-1] = count", "cuts[-1] = min(count, cuts[-1])"),
    ("data/tables/splitting", "is_small = sizes < min_rows", "is_small = sizes <= min_rows"),
    ("algorithms/pflego", "config.local_steps - 1", "config.local_steps"),
    ("algorithms/pflego", "nests.scale(round_.participation_scale, uploads.summed)",
     "uploads.summed"),
    ("algorithms/pgfed", "(offsets + slope)", "(offsets - slope)"),
    ("algorithms/scaffold", "moved), mean_variate)", "moved), state.variate)"),
    ("aggregation/privacy", "tf.minimum(1.0, bound / norm)", "bound / norm"),
    ("aggregation/privacy", "noise -= tf.tensordot", "noise += tf.tensordot"),
    ("aggregation/robust", "(count - 1) // 2)", "count // 2)"),
    ("engines/client_states", "self._write(*self._undo.pop())", "self._undo.pop()"),
    ("engines/client_computation", "result.individual, result.state))", "result.individual))"),
    ("devices/server_engine", "cohort.seeds[row]", "cohort.seeds[0]"),
    ("tff/exchange", "nests.scale(1 / received.weight, averaged)", "averaged"),
    ("ray/ray_engine", "dict.fromkeys(self._staged, keep)",
     "dict.fromkeys(self._staged, True)"),
    ("devices/client_directory", "while needed > oldest:", "while False:"),
    ("simulation/evaluation", "np.average(values, weights=counts)", "np.average(values)"),
    ("simulation/checkpoint", "(numbers >= 0) & ~states.have_state(numbers)", "numbers >= 0"),
    (
        "serving/personal_model",
        "_if_finite(self._rule(start.head, client, steps, learning_rate), start.head)",
        "self._rule(start.head, client, steps, learning_rate)",
    ),
    ("serving/new_clients", "order[strata[order] == one][:count]", "order[strata[order] == one]"),
    ("runs/resumption", "if pair[0] != pair[1]}", 'if pair[0] != pair[1] and name != "seed"}'),
    ("sweeps/choice", "(trial.first.sign * trial.value, trial)", "(trial.value, trial)"),
    ("reports/metrics", "statistic.sign * np.sort(statistic.sign * values", "np.sort(values"),
    ("program/flags", "        if is_given(name):", "        if False:"),
)  # fmt: skip
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def finds(tree, environment, *options):
    """Returns the first test that fails, or None."""
    command = [ROOT / environment / "bin/python", "-m", "pytest", "-x", "--tb=no", "-rfE", *options]
    command += ["-n", "auto", "--dist", "worksteal"]
    result = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    failed = FAILED.search(result.stdout)
    return failed and failed[1]


def found_by(tree, module):
    """Returns the test that finds the bug in a module of the tree, and the command that runs it."""
    package, name = f"tests/{module.split('/')[0]}", module.split("/")[-1]
    near = [str(path.relative_to(tree)) for path in (tree / package).rglob(f"test_{name}*.py")]
    tries = [("make test", ".venv", "--quick", places) for places in (near, [package], ["tests"])]
    tries += [
        ("make test-all", ".venv", "--line=tff", [package]),
        ("make test-all", ".venv-current", "--line=current", [package]),
    ]
    for command, environment, option, places in tries:
        test = places and finds(tree, environment, option, *places)
        if test:
            return test, command
    return None, ""


def main(parts):
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        tree = pathlib.Path(directory) / "tree"
        subprocess.run(["git", "clone", "-q", ROOT, tree], check=True)
        for module, text, bug in BUGS:
            if parts and not any(part in module for part in parts):
                continue
            path = tree / "tf_pflego" / f"{module}.py"
            content = path.read_text(encoding="utf-8")
            if content.count(text) != 1:
                print(f"{module}: {text!r} is there {content.count(text)} times", flush=True)
                missed += 1
                continue
            path.write_text(content.replace(text, bug), encoding="utf-8")
            test, command = found_by(tree, module)
            path.write_text(content, encoding="utf-8")
            missed += test is None
            print(f"{module}: {text.strip()!r}: {test or 'FOUND BY NONE'} ({command})", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
