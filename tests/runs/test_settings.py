"""What is to be known of a setting stands at its declaration, and nowhere else."""

import ast
import dataclasses
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from tf_pflego.algorithms import settings_of_methods
from tf_pflego.core import settings
from tf_pflego.runs import reader
from tf_pflego.runs.config import RunConfig
from tf_pflego.simulation import checkpoint
from tf_pflego.sweeps import store

PACKAGE = pathlib.Path(__file__).parents[2] / "tf_pflego"
NAMES = {field.name for field in dataclasses.fields(RunConfig)} | settings_of_methods().keys()
# What no declaration can say.
LISTS = {
    # In which order settings are columns,
    "program/list.py": [["dataset", "seed"]],
    "reports/view.py": [
        ["clip_norm", "clients_per_round", "dp_delta", "dp_mechanism", "participation"]
    ],
    "sweeps/experiments.py": [["clients_per_round", "num_clients"]],
    "sweeps/filling.py": [["algorithm", "dataset", "personalization"]],
    # with which of them privacy is claimed,
    "runs/aggregation_settings.py": [["dp_epsilon", "dp_noise_multiplier"]],
    # what a function of the data, which knows no settings, takes as a list, or as None, and needs,
    "data/tables/reading.py": [["feature_columns", "time_column"]],
    "runs/table_settings.py": [
        ["category_columns", "feature_columns", "label_column", "text_columns"],
        ["feature_columns", "time_column"],
        ["client_column", "label_column"],
    ],
    # and what they were called.
    "core/settings.py": [
        ["num_eval_clients", "num_new_clients"],
        ["num_spare_clients", "on_small_client"],
        ["permuted_fraction", "shifted_fraction"],
        ["client_dropout", "client_learning_rate_decay"],
        ["node_timeout", "round_timeout"],
    ],
}


def _listed(node):
    """Returns what a literal collection, or a text that is split, lists.

    A dictionary of values to be computed is none.
    """
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return node.elts
    if isinstance(node, ast.Dict) and all(isinstance(one, ast.Constant) for one in node.values):
        return [*filter(None, node.keys), *node.values]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "split" and isinstance(node.func.value, ast.Constant):
            return [*map(ast.Constant, str(node.func.value.value).split())]
    return []


def test_no_list_of_settings_is_kept_by_hand():
    lists: dict[str, list[list[str]]] = {}
    for path in sorted(PACKAGE.glob("**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            texts = [one.value for one in _listed(node) if isinstance(one, ast.Constant)]
            names = sorted(NAMES & {text for text in texts if isinstance(text, str)})
            if len(names) > 1:
                lists.setdefault(path.relative_to(PACKAGE).as_posix(), []).append(names)
    assert {path: sorted(found) for path, found in lists.items()} == {
        path: sorted(sorted(one) for one in allowed) for path, allowed in LISTS.items()
    }


WHAT_IS_KNOWN = """import dataclasses, json
from tf_pflego.system import deferred
deferred.defer()
from tf_pflego.devices import definition as federation
from tf_pflego.program import help_pages
from tf_pflego.reports import series
from tf_pflego.runs import resumption
from tf_pflego.runs.config import RunConfig
from tf_pflego.sweeps import experiments, store

runs = [dataclasses.asdict(RunConfig(patience=n, shelf=f"s{n}", dealer=n)) for n in (1, 2)]
cells = experiments.grid(patience=[1, 2])
experiment = experiments.Experiment(cells, {"shelf": "top"}, choose="none")
new = {"patience", "shelf", "dealer"}
try:
    RunConfig(table="t.csv", client_column="a", label_column="b", dealer=2)
except ValueError as error:
    refused = str(error)
print(json.dumps({
    "help": help_pages.of_training(None, 80),
    "another run": sorted(resumption._differences(*runs)),
    "cells": [cell.name for cell in experiment.planned],
    "flags": [sorted(new & store.flags_of(cell.settings).keys()) for cell in experiment.planned],
    "told": sorted(new & federation._SETTINGS),
    "refused": refused,
    "is started": deferred.is_started(),
}))
"""


def test_a_new_setting_is_known_wherever_settings_are_by_its_declaration_alone(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tf_pflego", ignore=shutil.ignore_patterns("__pycache__"))
    path, head = tmp_path / "tf_pflego/runs/config.py", "    num_rounds: int = setting("
    declared = '    patience: int = setting(7, "rounds without a gain", at_least=1)\n'
    declared += '    shelf: str = _place("", "where it stands")\n'
    declared += '    dealer: int = _of_dealing(0, "who deals")\n'
    text = path.read_text(encoding="utf-8")
    assert text.count(head) == 1
    path.write_text(text.replace(head, declared + head), encoding="utf-8")
    command = [sys.executable, "-c", WHAT_IS_KNOWN]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    known = json.loads(done.stdout)
    assert "  --patience=N\n      rounds without a gain (at least 1; default 7)" in known.pop(
        "help"
    )
    assert "`dealer` must not be given with `client_column`" in known.pop("refused")
    assert known == {
        "another run": ["dealer", "patience"],
        "cells": ["1_pflego", "2_pflego"],
        "flags": [["patience"], ["patience"]],
        "told": ["patience"],
        "is started": False,
    }


# A new kind of compression: the signs of an upload, in a bit each.
NEW_VALUE = {
    '"top_k": _SHARE}': '"top_k": _SHARE, "signs": None}',
    '        "masked": _Compressor(\n': '        "signs": _Compressor(\n            '
    "lambda vector, seed: tf.sign(vector), lambda n: math.ceil(n / 8)\n        ),\n"
    '        "masked": _Compressor(\n',
}
WHAT_RUNS = """import json, pathlib
from tf_pflego import main, sweeps
from tf_pflego.devices.definition import Definition
from tf_pflego.core import settings
from tf_pflego.runs import reader
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan, parts_of

few = ["--dataset=digits", "--num_clients=4", "--classes_per_client=4", "--clients_per_round=2"]
few += ["--compression=signs"]
experiment = {"num_clients": 4, "classes_per_client": 4, "clients_per_round": 2, "num_rounds": 2}
cells = [{"compression": "signs"}, {"compression": "none"}]
made = f"import tf_pflego as pfl\\ntwo = pfl.sweeps.Experiment({cells}, {experiment})\\n"
pathlib.Path("two.py").write_text(made)
for command in (
    ["train", *few, "--engine=in_process", "--num_rounds=2", "--output_dir=run", "--quiet"],
    ["train", "--output_dir=run", "--resume", "--num_rounds=3", "--quiet"],
    ["report", "run", "--output=page.html"],
    ["sweep", "two.py", "--output_dir=swept", "--jobs=1"],
    ["serve", *few, "--client_names=a,b,c,d", "--define=told.json"],
):
    assert main.main(["tf_pflego", *command]) == 0, command
rows = sweeps.load_sweep("swept").rows
parts = [parts_of(json.loads(row["plan"])) for row in rows]
plans = [Plan.of(RunConfig(**of_run), **of_method) for of_run, of_method in parts]
print(json.dumps({
    "bytes up": [one["bytes_up"] for one in reader.records(pathlib.Path("run/metrics.jsonl"))],
    "is on the page": ">signs<" in pathlib.Path("page.html").read_text(),
    "swept": [plan.settings.compression for plan in plans],
    "read again": [
        {name: plan.configuration[name] for name in plan.configuration.keys() - reader.places()}
        == json.loads(row["plan"])
        for plan, row in zip(plans, rows, strict=True)
    ],
    "told": Definition.load("told.json").run_config.compression,
}))
"""


@pytest.mark.thorough
def test_a_new_value_of_a_setting_runs_everywhere_by_its_declaration_alone(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "tf_pflego", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "tf_pflego/aggregation/compression.py"
    text = path.read_text(encoding="utf-8")
    for old, new in NEW_VALUE.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", WHAT_RUNS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "bytes up": [3250] * 3,
        "is on the page": True,
        "swept": ["signs", "none"],
        "read again": [True, True],
        "told": "signs",
    }


def test_stored_settings_are_read_under_their_former_names(tmp_path):
    former = settings.FORMER_NAMES
    assert {*former.values()} <= NAMES and not NAMES & {*former}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict.fromkeys(former, 3)), encoding="utf-8")
    assert reader.configuration(path) == dict.fromkeys(former.values(), 3)
    row = {"flags": "--new_clients=3", "plan": '{"eval_clients": 4}'}
    assert store.settings_of(row) == ({"num_new_clients": "3"}, {"num_eval_clients": "4"})
    drawn = {"participation": {"client_dropout": 0.1}}
    assert not checkpoint.differences(drawn, {"participation": {"dropout_rate": 0.1}})
    other = {"participation": {"dropout_rate": 0.2}}
    assert "got client_dropout 0.2" in checkpoint.differences(drawn, other)
