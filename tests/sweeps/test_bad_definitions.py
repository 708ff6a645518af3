"""Bad definitions on the command line: each is one line, and nothing is written."""

import dataclasses

import pytest

import tf_pflego as pfl
from tests.starts import assert_refused, in_this_process

FILES = {
    "broken.py": "import tf_pflego\n\ncells = (\n",
    "failing.py": "import tf_pflego\n\nraise KeyError('what')\n",
    "without.py": "experiment = 3\n",
    "several.py": "from tf_pflego.sweeps import Experiment\n"
    "first, second = (Experiment([{'algorithm': name}]) for name in ('fedavg', 'local'))\n",
    "bad.py": "from tf_pflego.sweeps import Experiment\nmine = Experiment([{'seed': 3}])\n",
    "file": "no directory",
}
RATES, OUT = "--client_learning_rate=0.1,0.2", "--output_dir={tmp}/new"
ROWS = [
    (["--algorithm=fedavg"], "--output_dir must be given; got nothing. Give --output_dir."),
    ([OUT, "--algorithm=pflego,fedavgg"], "got 'fedavgg'. Did you mean fedavg? Correct --algorith"),
    ([OUT, "--client_learning_rat=1,2"], "got --client_learning_rat. Did you mean --client_learni"),
    ([OUT, "--algorithm=fedavg", "--head_epochs=1,2"], "--head_epochs must be a setting of runs, "
     "or of a method of the cells; got the methods fedavg. Correct it or leave it out."),
    ([OUT, "--client_learning_rate="], "--client_learning_rate must be a number or auto, or "
     "several with commas between them, or a range from a number to a larger one, as in 1e-3..1:l"),
    ([OUT, "--num_clients=9", "--clients_per_round=5,20"], "--clients_per_round must be in [1, num_"
     "clients=9]; got 20. Lower --clients_per_round."),
    ([OUT, "--client_learning_rate=1..0.1", "--trials=3"], "to a larger one, as in 1e-3..1:log; g"),
    ([OUT, "--client_learning_rate=0.1..1"], "settings to try in a range; got 0. Set --trials=20."),
    ([OUT, "--client_learning_rate=0.1..1", "--trials=2", "--choose=none"], "for a range; got non"),
    ([OUT, RATES, "--choose=test_accuracy"], "--choose must be one of validation, none; "),
    ([OUT, "--seeds=one"], "--seeds must be whole numbers, with commas between them if there are "
     "several; got 'one'. Write them as in --seeds=0,1,2."),
    ([OUT, "--reference=fedavg"], "--reference must be one of pflego; got 'fedavg'. Correct --ref"),
    ([OUT, "--where=algorithm=ditto"], "--where must select a cell, by NAME=VALUE; got 'algorithm"),
    ([OUT, "--where=pflego"], "got 'pflego', which selects none of 1. Correct it; --list shows th"),
    ([OUT, "--seed=3"], "got --seed. Did you mean --seeds? Correct it or leave it out."),
    ([OUT, "--list", "{tmp}/none.py"], "`FILE` must name a file that can be read; got '{tmp}/none"),
    ([OUT, "{tmp}/broken.py"], "Python can run; got, in broken.py, line 3, SyntaxError: '(' was n"),
    ([OUT, "{tmp}/failing.py"], "Python can run; got, in failing.py, line 3, KeyError: 'what'. Co"),
    ([OUT, "{tmp}/without.py"], "`FILE` must define an `Experiment`; {tmp}/without.py has none."),
    ([OUT, "{tmp}/several.py:frist"], "an `Experiment` frist; {tmp}/several.py has first, second. "
     "Did you mean first? Correct the name, or define it."),
    ([OUT, "{tmp}/bad.py"], "in bad.py, line 2, ValueError: `cells[0]` must not have `seed`, whic"),
    ([OUT, "{tmp}/several.py", "{tmp}/bad.py"], "expected at most 1 argument besides flags; got"),
    (["--output_dir={tmp}/file", "--data_dir={tmp}"], "--output_dir must be a directory that can "
     "be written; {tmp}/file is not (File exists). Choose another --output_dir."),
    ([OUT, "--show"], "--output_dir must be the directory of a sweep; {tmp}/new is not (sweep.jso"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize(("arguments", "said"), ROWS, ids=lambda one: one[-1][-40:])
def test_a_bad_definition_is_one_line_and_nothing_is_written(arguments, said, files, capsys):
    arguments, said = (
        [text.replace("{tmp}", str(files)) for text in one] for one in (arguments, [said])
    )
    assert_refused(in_this_process(["sweep", *arguments], capsys), *said)
    assert sorted(path.name for path in files.iterdir()) == sorted(FILES)


def test_python_objects_are_refused(tmp_path, tiny_clients):
    experiment = pfl.Experiment([{"algorithm": "local"}])
    own = dataclasses.replace(experiment, clients=tiny_clients)
    with pytest.raises(ValueError, match="`jobs` must be 1 where clients, a model or a"):
        pfl.sweep(own, tmp_path / "new", jobs=2)
    for options, said in (
        ({"jobs": 0}, "`jobs` must be at least 1; got 0"),
        ({"ray_address": 3}, "`ray_address` must be text; got 3"),
    ):
        with pytest.raises(ValueError, match=said):
            pfl.sweep(experiment, tmp_path / "new", **options)
    with pytest.raises(TypeError, match="`experiment` must be of the class Experiment; got list"):
        pfl.sweep([{"algorithm": "local"}], tmp_path / "new")
    with pytest.raises(ValueError, match="`output_dir` must be the directory of a sweep;"):
        pfl.load_sweep(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "sweep.json").write_text('{"cells": [')
    with pytest.raises(ValueError, match="`output_dir` must be the directory of a sweep;"):
        pfl.load_sweep(tmp_path)
