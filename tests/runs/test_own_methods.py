"""A method of a user's own runs as those of the package do, by FILE.py:FUNCTION or its builder."""

import dataclasses
import inspect
import json
import re
import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.docs import pages
from tests.engines.agreement import ENGINES
from tests.methods import thorough
from tests.starts import ROOT, assert_refused, done, in_this_process, replaced
from tf_pflego import algorithms
from tf_pflego.algorithms import own_methods
from tf_pflego.core import nests, settings
from tf_pflego.runs import build, plan, training
from tf_pflego.runs.plan import Plan
from tf_pflego.runs.run_directory import RunDirectoryError

PAGE = (ROOT / "docs" / "own_method.md").read_text(encoding="utf-8")
NAME = "mean_regularized.py:build_mean_regularized"
RUN = (
    "--dataset=digits",
    "--num_clients=6",
    "--clients_per_round=3",
    "--label_space=global",
    "--local_steps=2",
    "--pull=0.5",
    "--engine=in_process",
)


def write_method(directory):
    """Writes the method of docs/own_method.md, and returns how a flag names it."""
    blocks = [block.text for block in pages.blocks(PAGE.partition("\n## 4.")[0]) if block.runs]
    blocks = [block for block in blocks if not block.startswith("try:")]  # A value is refused.
    path = directory / "mean_regularized.py"
    path.write_text("\n".join(blocks), encoding="utf-8")
    return f"{path}:build_mean_regularized"


@pytest.fixture(scope="module")
def method(tmp_path_factory):
    return write_method(tmp_path_factory.mktemp("method"))


@pytest.fixture(scope="module")
def whole(method, digits_dir, tmp_path_factory):
    """The directory of a run of six rounds; beside it is `stopped`, as it was in its fifth."""
    output = tmp_path_factory.mktemp("own") / "whole"

    def keep(record):
        if record["round"] == 5:
            ignored = shutil.ignore_patterns(".lock")
            shutil.copytree(output, output.with_name("stopped"), ignore=ignored)

    config = pfl.RunConfig(
        algorithm=method,
        num_clients=6,
        clients_per_round=3,
        label_space="global",
        engine="in_process",
        num_rounds=6,
        checkpoint_every=2,
        data_dir=digits_dir,
        output_dir=output,
    )
    pfl.run(config, keep, local_steps=2, client_learning_rate=0.007, pull=0.5)
    return output


@pytest.mark.thorough
def test_the_program_goes_on_to_the_same_bits_and_exports(
    method, whole, digits_dir, tmp_path, capsys
):
    resumed = shutil.copytree(whole.with_name("stopped"), tmp_path / "resumed")
    flags = [f"--algorithm={method}", *RUN, "--num_rounds=6", f"--data_dir={digits_dir}"]
    result = done([*flags, f"--output_dir={resumed}", "--resume"], capsys)
    assert result.stdout.startswith("mean_regularized on digits (in_process), 6 rounds")
    assert (resumed / "server.npz").read_bytes() == (whole / "server.npz").read_bytes()
    config = json.loads((resumed / "config.json").read_text())
    assert (config["algorithm"], config["pull"], config["local_steps"]) == (NAME, 0.5, 2)
    listed = in_this_process(["list", str(tmp_path)], capsys).stdout.splitlines()
    about = ["resumed", "mean_regularized", "digits", "global", "0", "6/6"]
    assert listed[1].split()[:6] == about
    export = ["export", f"--run={resumed}", "--clients=3", "--format=keras"]
    export.append(f"--output_dir={tmp_path / 'models'}")
    assert_refused(
        in_this_process(export, capsys),
        f"--algorithm must be given for the run in {resumed}, with your own method ({NAME})",
        f"as in --algorithm={NAME}, ",
    )
    assert in_this_process([*export, f"--algorithm={method}"], capsys).returncode == 0
    assert (tmp_path / "models" / "client_3.keras").is_file()


def test_a_stored_run_is_loaded_with_the_same_source_alone(method, whole, tmp_path):
    run = pfl.load_run(whole)
    assert run.metrics["round"].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RunDirectoryError, match="`algorithm` must be given for the run in"):
        run.evaluate()
    with pfl.load_run(whole, algorithm=method) as run:
        actual = run.evaluate()
    expected = json.loads((whole / "summary.json").read_text())["test_accuracy/client_mean"]
    assert np.mean(actual.test_hits / actual.test_examples) == pytest.approx(expected)
    changed = write_method(tmp_path)
    path = tmp_path / "mean_regularized.py"
    path.write_text(path.read_text("utf-8").replace("config.pull / 2", "config.pull / 3"))
    for another in (changed, "fedavg"):
        with pytest.raises(RunDirectoryError, match=r"the source of .* is another. Give it as it"):
            pfl.load_run(whole, algorithm=another).evaluate()
    config = pfl.RunConfig(output_dir=whole, resume=True, num_clients=6, algorithm=changed)
    with pytest.raises(RunDirectoryError, match=r"`algorithm_source`: expected .*, got"):
        pfl.run(config)


@pytest.mark.parametrize("has_source", [True, thorough(False)])
def test_no_code_is_run_because_a_directory_names_it(
    has_source, whole, tmp_path, capsys, without_pictures
):
    trap, copy = tmp_path / "trap.py", shutil.copytree(whole, tmp_path / "copy")
    trap.write_text("open(__file__ + '.ran', 'w')\n")
    config = json.loads((copy / "config.json").read_text()) | {"algorithm": f"{trap}:build"}
    if not has_source:
        del config["algorithm_source"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunDirectoryError, match="`algorithm` must be given"):
        pfl.load_run(copy).client_model(0)
    pfl.report([copy], tmp_path / "report.html")
    assert "<h1>build on digits</h1>" in (tmp_path / "report.html").read_text("utf-8")
    assert in_this_process(["list", str(tmp_path)], capsys).returncode == 0
    assert not (tmp_path / "trap.py.ran").exists()


def test_help_shows_its_hyper_parameters(method, capsys):
    result = in_this_process([f"--algorithm={method}", "--help"], capsys)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"hyper-parameters of {NAME}:" in result.stdout
    assert "mu, pull of the mean (at least 0; default 0.1)" in result.stdout
    assert "FILE.py:FUNCTION" in in_this_process(["--help"], capsys).stdout


def test_flags_of_a_flag_file_count_and_bad_values_are_refused(method, tmp_path, capsys):
    path = tmp_path / "own.flags"
    path.write_text(f"--algorithm={method}\n--pull=-1\n")
    refused = in_this_process([f"--flagfile={path}"], capsys)
    assert_refused(refused, "--pull must be at least 0; got -1.0. Raise --pull.")
    refused = in_this_process(["--pull=1"], capsys)
    assert_refused(refused, "a flag must be one of those that --help lists; got --pull")


HEAD = """
import dataclasses
from tf_pflego.core import settings

@dataclasses.dataclass(frozen=True)
class Config(settings.HyperParameters):
    rate: float = settings.setting(0.1, "rate", above=0)

class NoDataclass(settings.HyperParameters):
    rate: float = settings.setting(0.1, "rate", above=0)

@dataclasses.dataclass(frozen=True)
class Plain(settings.HyperParameters):
    rate: float = 0.1

@dataclasses.dataclass(frozen=True)
class Taken(settings.HyperParameters):
    model: float = settings.setting(0.1, "rate", above=0)
"""
NONE = "must be a function (model, config: CONFIG), with a dataclass that derives from"
BAD = {
    "def f(model, config: Config): return 3": "own.py:f must return an `Algorithm`; got int",
    "def f(model, config: Config):\n    model.x": "own.py:f must build an `Algorithm`; got, in "
    "own.py, line 21, AttributeError: 'SplitModel' object has no attribute 'x'",
    "def f(model, config): pass": f"own.py:f {NONE}",
    "def f(model, config: 'Missing'): pass": f"own.py:f {NONE}",
    "def f(model, config: Config, more): pass": f"own.py:f {NONE}",
    "def f(model, config: NoDataclass): pass": "got NoDataclass, no dataclass",
    "def f(model, config: Taken): pass": "must not have a name that a run has, or had",
    "@dataclasses.dataclass(frozen=True)\nclass Former(settings.HyperParameters):\n"
    "    dropout_rate: float = settings.setting(0.1, 'rate', above=0)\n"
    "def f(model, config: Former): pass": "must not have a name that a run has, or had in an",
    "f = 3": "must name a function of",
    "def ff(model, config: Config): pass": "got 'f', which is none. Did you mean ff?",
    "def f(model config): pass": "got, in own.py, line 20, SyntaxError",
    "import nothing_here": "line 20, ModuleNotFoundError: No module named 'nothing_here'",
    "f = '\0'": "must name a file that Python can run; got, in own.py",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_file_is_one_line(text, digits_dir, tmp_path, capsys):
    path = tmp_path / "own.py"
    path.write_text(f"{HEAD}\n{text}\n")
    flags = [f"--algorithm={path}:f", f"--data_dir={digits_dir}", "--engine=in_process"]
    assert_refused(in_this_process(flags, capsys), BAD[text])


def test_a_missing_file_or_builder_is_one_line(capsys):
    no_file = "--algorithm must name a file that can be read; got", "No such file"
    no_builder = "as FILE.py:FUNCTION; got 'own.py'. Add", "--algorithm=own.py:build_x"
    for name, said in {"missing.py:f": no_file, "x\ny.py:f": no_file, "own.py": no_builder}.items():
        assert_refused(in_this_process([f"--algorithm={name}"], capsys), *said)


@pytest.mark.parametrize("engine", ENGINES[:2])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nestz.add(mean, mean)", "NameError: name 'nestz' is not defined. Correct the file."),
        (
            "0 if client.num_examples > 3 else 1",
            "`tf.Tensor` as a Python `bool` is not allowed; use `tf.where` or `tf.cond`. Correct",
        ),
    ],
)
def test_a_fault_of_tracing_is_one_line(line, expected, engine, digits_dir, tmp_path, capsys):
    name, path = write_method(tmp_path), tmp_path / "mean_regularized.py"
    before, loss, after = path.read_text("utf-8").partition("        def loss(")
    path.write_text(f"{before}        {line}\n{loss}{after}", encoding="utf-8")
    flags = [f"--algorithm={name}", *RUN, f"--engine={engine}", f"--data_dir={digits_dir}"]
    flags = replaced(*flags, "--num_rounds=1")
    refused = in_this_process(flags, capsys)
    number = before.count("\n") + 1
    assert_refused(refused, f"got, in mean_regularized.py, line {number}, ", expected)


@dataclasses.dataclass(frozen=True)
class RateConfig(settings.HyperParameters):
    client_learning_rate: float = settings.client_learning_rate()


def build_plain(model, config: RateConfig):
    return pfl.build_algorithm(
        "fedavg", model, local_steps=1, client_learning_rate=config.client_learning_rate
    )


@pytest.mark.thorough
def test_a_builder_is_given_in_python(tiny_clients, tiny_model, tmp_path):
    config = pfl.RunConfig(
        clients_per_round=2, engine="in_process", num_rounds=2, output_dir=tmp_path / "run"
    )
    given = {"clients": tiny_clients, "model": tiny_model, "client_learning_rate": 0.5}
    pfl.run(config, algorithm=build_plain, **given)
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["algorithm"] == "test_own_methods.py:build_plain"
    longer = dataclasses.replace(config, num_rounds=3, resume=True)
    assert pfl.run(longer, algorithm=build_plain, **given)["round"] == 3
    with pytest.raises(RunDirectoryError, match=r"`algorithm`: expected .*build_plain, got pflego"):
        pfl.run(longer, **given)
    of_package = dataclasses.replace(config, algorithm="fedavg")
    with pytest.raises(ValueError, match="must not be given where `algorithm` is given too"):
        pfl.run(of_package, algorithm=build_plain, **given)
    with pytest.raises(TypeError, match="`rate` must be a hyper-parameter of test_own"):
        pfl.build_algorithm(build_plain, tiny_model, rate=1)
    with pytest.raises(TypeError, match=r"`algorithm` must be a builder, .*; got Algorithm"):
        pfl.run(config, algorithm=build_plain(tiny_model, RateConfig()))


@dataclasses.dataclass(frozen=True)
class NothingConfig(settings.HyperParameters):
    """Of a method that has no hyper-parameters."""


def test_a_method_needs_no_hyper_parameters(tiny_model):
    def build(model, config: NothingConfig):
        return pfl.build_algorithm("fedavg", model)

    assert pfl.build_algorithm(build, tiny_model).name == "fedavg"
    with pytest.raises(TypeError, match="which has none"):
        pfl.build_algorithm(build, tiny_model, pull=1)


def test_the_checksum_is_of_what_the_builder_uses(tmp_path):
    path = tmp_path / "own.py"
    text = (
        f"{HEAD}\nSTEPS = 3\ndef helper():\n    return STEPS\n"
        "def f(model, config: Config):\n    return helper()\ndef other():\n    return 1\n"
    )

    def checksum(changed):
        assert changed != text or changed is text
        path.write_text(changed)
        return own_methods.from_file(f"{path}:f").checksum()

    first = checksum(text)
    assert checksum(text.replace("return 1", "return 2")) == first
    assert checksum(text.replace("STEPS = 3", "STEPS = 3  # of a client")) == first
    for old, new in (("STEPS = 3", "STEPS = 4"), ("return STEPS", "return -STEPS")):
        assert checksum(text.replace(old, new)) != first
    assert (
        checksum(text.replace('0.1, "rate", above=0)\n\nclass', '0.2, "rate")\n\nclass')) != first
    )
    namespace = {}
    exec(compile(text, "<prompt>", "exec"), namespace)
    with pytest.raises(ValueError, match="must be in a file or a notebook for a run with `output"):
        own_methods.from_builder(namespace["f"]).checksum()


def test_no_argument_of_a_run_can_be_a_hyper_parameter():
    functions = training.run, build.build_simulation, Plan.of
    for function in (*functions, algorithms.build):
        names = {*inspect.signature(function).parameters} - {"hyper_parameters", "settings"}
        assert names <= plan._TAKEN


def test_the_page_has_all_functions_on_nests():
    table = PAGE.partition("\n## Arithmetic on states\n")[2]
    shown = re.findall(r"`(\w+)\(", "".join(re.findall(r"^\|.*?\|", table, re.MULTILINE)))
    functions = inspect.getmembers(nests, inspect.isfunction)
    assert sorted(shown) == sorted(name for name, _ in functions if not name.startswith("_"))
