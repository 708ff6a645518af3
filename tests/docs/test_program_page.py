"""docs/program.md and the names in docs/metrics.md are what runs really have and do."""

import json
import re

import pytest

import tf_pflego as pfl
from tests.docs import pages
from tests.starts import ROOT
from tf_pflego.core.statistic_names import of_metric
from tf_pflego.program import failures
from tf_pflego.program.verbs import VERBS
from tf_pflego.simulation.records import METRIC_NAMES

PROGRAM = (ROOT / "docs" / "program.md").read_text(encoding="utf-8")
TRACKING = (ROOT / "docs" / "tracking.md").read_text(encoding="utf-8")
NAMES = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").partition("\n## Names\n")[2]


def first_cells(table):
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


@pytest.mark.thorough
def test_names_of_metrics_keys_of_a_summary_and_files_of_a_run_are_documented(digits_dir, tmp_path):
    """The method serves two models; the run has clients of all kinds and all files."""
    of_run = {"algorithm": "ditto", "engine": "in_process", "num_rounds": 12, "tensorboard": True}
    of_run |= {
        "num_clients": 10,
        "clients_per_round": 4,
        "num_eval_clients": 5,
        "num_new_clients": 2,
    }
    of_run |= {"permuted_fraction": 0.5, "shifted_fraction": 0.5, "validation_fraction": 0.2}
    of_run |= {"new_client_epochs": 1, "data_dir": digits_dir}
    output, records = tmp_path / "run", []
    config = pfl.RunConfig(output_dir=output, **of_run)
    summary = pfl.run(config, on_round=records.append, local_steps=2)
    of_rounds, of_evaluated, of_summary, *rest = re.split(r"\n(?=\| (?:name|key) \|)", NAMES)[1:]
    assert not rest
    bookkeeping, metrics = first_cells(of_rounds), first_cells(of_evaluated)
    metrics += [f"generic/{name}" for name in metrics if not name.startswith("participant")]
    names = {name for record in records for name in record}
    values = [value for record in records for value in record.values()]  # They are flat.
    assert all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    assert names == {*bookkeeping, *metrics} - {"not_finite_clients"}
    # A user's own metric has none of these names: of models and groups, its method and data say.
    with open(output / "clients.csv", encoding="utf-8") as file:
        columns = file.readline().strip().split(",")
    parts = {name.partition("/")[0] for name in (*names, *summary, *columns)}
    others = {part for part in parts if not of_metric(part).name}
    assert others - METRIC_NAMES == {"generic", "permuted", "shifted"}
    evaluated = [record["round"] for record in records if "test_accuracy/client_mean" in record]
    assert evaluated == [1, *range(3, 13)]
    lines = (output / "metrics.jsonl").read_text().splitlines()
    assert [set(json.loads(line)) for line in lines] == [set(record) for record in records]
    expected = {*metrics, *first_cells(of_summary)}
    for key in [key for key in expected if key.startswith("ACCURACY/")]:
        expected.remove(key)
        accuracies = [
            name
            for name in metrics
            if "_accuracy/" in name and not (key.endswith("best") and "error" in name)
        ]
        expected |= {key.replace("ACCURACY", name) for name in accuracies}
    assert set(summary) == expected
    assert json.loads((output / "summary.json").read_text()).keys() == summary.keys()
    section = PROGRAM.partition("## The files of a run")[2].partition("\n## ")[0]
    # This run has no frozen part, which would have features, and its labels are no quantities.
    written = [path.name for path in output.iterdir()] + ["features", "predictions.csv"]
    written += ["personalized.csv", "personalizing"]  # of a pass over all clients after the run
    assert sorted(first_cells(section)) == sorted(written)


STAND_IN = """
import contextlib, types
told, summary = [], {}
log = log_metrics = lambda numbers, step: told.append((step, numbers))
run = types.SimpleNamespace(log=log, summary=summary)
init = start_run = lambda **about: contextlib.nullcontext(run)
log_params, log_dict = summary.update, lambda values, file: summary.update(values)
"""
BEFORE = """
import sys
sys.path.insert(0, ".")
import mlflow, wandb
"""
AFTER = """
name = "test_accuracy/client_mean"
for log in (mlflow.told, wandb.told):
    curve = {number: values[name] for number, values in log if name in values}
    assert list(curve) == [1, 2, 3, 4, 5] and all(0 < share < 1 for share in curve.values())
assert mlflow.summary[name] == wandb.summary[name] == curve[5]
assert mlflow.summary["num_clients"] == 20
"""


@pytest.mark.thorough
def test_the_callbacks_for_trackers_tell_every_round(digits_dir, tmp_path):
    for name in ("wandb", "mlflow"):
        (tmp_path / f"{name}.py").write_text(STAND_IN)
    code = re.findall(r"```py\n(.*?)```", TRACKING, re.DOTALL)
    assert len(code) == 3 and "pfl.Callback" in code[1] and "pfl.Callback" in code[2]
    pages.run("\n".join([BEFORE, *code, AFTER]), tmp_path, TFDS_DATA_DIR=digits_dir)


def test_verbs_and_exit_codes_are_those_of_the_program():
    assert first_cells(PROGRAM.partition("\n## ")[0]) == list(VERBS)
    section = PROGRAM.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
    own = (0, failures.FAULT, failures.CORRECTABLE, failures.NOT_FINITE, failures.REFUTED)
    assert codes == [*map(str, own), "129, 130, 143"]
