"""Bad command lines: one line says what was expected, what came and what to do; nothing is lost."""

import ast
import dataclasses
import importlib.util
import os
import re

import pytest

from tests.program.bad_command_lines import OF_TABLE, ROWS, WITH_DATA, WITH_TABLE
from tests.starts import ROOT, in_this_process, replaced
from tf_pflego.program import command_line
from tf_pflego.runs import config, training


def name_of(value):
    return " ".join(value)[:60] if isinstance(value, list) else ""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with flag files, good for nothing, and with something that looks like a run."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "binary").write_bytes(bytes(range(256)))
    texts = {
        "itself": "--num_rounds=3\n--flagfile={tmp}/itself\n",
        "unknown": "# a comment\n\n--nonsense=3\n",
        "words": "hello there\n",
        "value": "--num_rounds=x\n",
        "lost": "--flagfile={tmp}/none\n",
        "zero": "--output_dir=a\0b\n",
        "open": "--quiet  # it's no quote\n--output_dir='a\n",
        "marked": "\ufeff--nonsense=3\n",
        # Each includes the next one twice: 2^40 files in all.
        **{f"wide{k}": 2 * f"--flagfile={{tmp}}/wide{k + 1}\n" for k in range(40)},
        "wide40": "--num_rounds=3\n",
        "three": "--num_rounds=3\n",
        "no_rounds": "--num_rounds=0\n",
        "outer": "--flagfile={tmp}/three\n--num_rounds=4\n",
        "twice": "--quiet\n--noquiet\n",
        "pupils.csv": "school,passed,age\nnorth,yes,3\nnorth,no,\nnorth,yes,5\nnorth,no,6\n"
        "south,no,4\nsouth,yes,2\n",
    }
    for name, text in texts.items():
        (directory / name).write_text(text.format(tmp=directory))
    os.mkfifo(directory / "fifo.csv")
    (directory / "held").mkdir()
    (directory / "held" / "config.json").write_text('{"algorithm": "pfl')
    return directory


def contents(directory):
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


def children():
    return open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()


def assert_refused(arguments, parts, files, capsys, lines=1):
    before, running = contents(files), children()
    arguments, *parts = (
        [text.replace("{tmp}", str(files)) for text in texts] for texts in (arguments, parts)
    )
    result = in_this_process(arguments, capsys)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == lines, result.stderr
    for part in parts[0]:
        assert part in result.stderr
    assert contents(files) == before
    assert children() == running


@pytest.mark.parametrize(("arguments", "said", "remedy"), ROWS, ids=name_of)
def test_a_bad_command_line_is_one_line(arguments, said, remedy, files, capsys, monkeypatch):
    def load(*_):
        pytest.fail("the data were loaded")

    if "mnist" not in str(arguments):
        monkeypatch.setattr(training.data, "load", load)
    assert_refused(arguments, (said, remedy), files, capsys)


def test_a_flag_file_is_read_as_a_shell_reads_words(tmp_path):
    path = tmp_path / "own.flags"
    text = """\ufeff--output_dir="r 1"  # first\r\n  // no flag\r\n# nor --this \\\r
--split='column:a "b' \\\r\n  --label_column=a\\ b#c  \n--table=a\\\nb\n"""
    path.write_bytes(text.encode())
    words = ["--output_dir=r 1", '--split=column:a "b', "--label_column=a b#c", "--table=ab"]
    assert command_line.expanded([f"--flagfile={path}", "last"]) == [*words, "last"]


@pytest.mark.parametrize(("arguments", "said", "remedy"), WITH_DATA, ids=name_of)
def test_what_does_not_fit_the_data_is_one_line(arguments, said, remedy, files, digits_dir, capsys):
    arguments = [f"--data_dir={digits_dir}", "--engine=in_process", *arguments]
    assert_refused(arguments, (said, remedy), files, capsys)


@pytest.mark.parametrize(("arguments", "said", "remedy"), WITH_TABLE, ids=name_of)
def test_what_does_not_fit_a_table_is_one_line(arguments, said, remedy, files, capsys):
    # From which columns a label is predicted is said once the table has been read.
    lines = 2 if "clients_per_round" in str(arguments) else 3 if "faults" in said else 1
    # A cell is empty, which is a fault of its own.
    missing = ["--missing=mean"] * bool(arguments)
    arguments = replaced(*OF_TABLE, "--engine=in_process", *missing, *arguments)
    assert_refused(arguments, (said, remedy), files, capsys, lines)


def test_a_flag_of_another_method_is_said(files, capsys):
    arguments = ["--server_mixing=0.5", "--dataset=mnist", "--data_dir={tmp}/none"]
    said = ("pflego has no --server_mixing; it is ignored",)
    assert_refused(arguments, said, files, capsys, lines=2)


@pytest.mark.parametrize("engine", ["tff", pytest.param("ray", marks=pytest.mark.lines("tff"))])
def test_an_engine_that_is_not_installed_is_one_line(engine, files, capsys):
    if importlib.util.find_spec({"tff": "tensorflow_federated"}.get(engine, engine)):
        pytest.skip(f"the engine {engine} is installed here")
    expected = f"--engine {engine} needs", "nstall it: `pip install"
    assert_refused([f"--engine={engine}"], expected, files, capsys)


def test_a_default_says_nothing(files, capsys):
    assert_refused(["--num_rounds=0", "--nooverwrite"], ("at least 1",), files, capsys)


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (["--flagfile={tmp}/outer", "--num_rounds=0"], ""),
        (["--flagfile={tmp}/three", "--flagfile={tmp}/no_rounds"], ""),
        (["--num_rounds=0", "--num_rounds", "0", "--quiet", "--quiet"], ""),
        (["--num_rounds=3", "--num_rounds", "0"], "--num_rounds=0 replaces --num_rounds=3"),
        (["--num_rounds=3", "--flagfile={tmp}/no_rounds"], "--num_rounds=0 replaces --num_rounds"),
        (["--num_rounds=0", "--resume", "--noresume"], "--resume=false replaces --resume=true"),
        (["--num_rounds=0", "--flagfile={tmp}/twice"], "--quiet=false replaces --quiet=true"),
    ],
)
def test_the_last_value_of_a_flag_counts(arguments, warning, files, capsys):
    """With a warning, unless the first is from a flag file before it."""
    assert_refused(arguments, (warning, "got 0"), files, capsys, lines=1 + bool(warning))


FAULTS = [
    ("MemoryError()", 2, "the run must fit the memory", "Lower --clients_per_round"),
    ("tf.errors.ResourceExhaustedError(None, None, 'OOM')", 2, "fit the memory; it does not (OOM",
     "--activation_gigabytes"),
    ("grpc.RpcError('gone')", 2, "the TFF worker must answer; it does not (gone)", "--resume"),
    ("OSError(28, 'No space left on device', '/x')", 2, "No space left on device: '/x'", "Free or"),
    ("OverflowError('too large')", 1, "got OverflowError (too large)", "Its traceback is in"),
    ("RecursionError('deep')", 1, "got RecursionError (deep)", "Its traceback is in"),
    ("tf.errors.InternalError(None, None, 'a\\nb')", 1, "got InternalError (a b)", "Its trace"),
    ("KeyError('what')", 1, "got KeyError ('what')", "Its traceback is in"),
    ("ValueError('of a library')", 1, "got ValueError (of a library)", "Its traceback is in"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "code", "said", "remedy"), FAULTS, ids=lambda v: str(v)[:20])
def test_whatever_else_is_raised_is_one_line(
    error, code, said, remedy, files, capsys, monkeypatch, tmp_path
):
    import tensorflow as tf

    names = {"tf": tf}
    if "grpc" in error:
        names["grpc"] = pytest.importorskip("grpc")
    raised = eval(error, names)

    def fail(*_, **__):
        raise raised

    monkeypatch.setattr(training, "train", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = in_this_process(["train"], capsys)
    assert result.returncode == code
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert remedy in result.stderr
    traces = list(tmp_path.glob("*.traceback.txt"))
    assert len(traces) == (code == 1)
    for path in traces:
        assert f"Its traceback is in {path};" in result.stderr
        assert "in fail" in path.read_text()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("`seed` must be; got 3. Raise `seed`.", "--seed must be; got 3. Raise --seed."),
        ("Set `seed=3` or `resume=True`.", "Set --seed=3 or --resume."),
        ("Choose `network='mlp'`.", "Choose --network=mlp."),
        ("`labels` and `a b` and seed stay", "`labels` and `a b` and seed stay"),
    ],
)
def test_arguments_are_written_as_flags(message, expected):
    assert command_line.as_flags(message, {"seed", "resume", "network"}) == expected


def texts_of(tree):
    """Yields the texts in a module that are neither its documentation nor the help of flags."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        is_call = isinstance(node, ast.Call)
        name = getattr(node.func, "attr", getattr(node.func, "id", "")) if is_call else ""
        is_doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if name not in ("setting", "add_argument", "_Parser") and not is_doc:
            yield from texts_of(node)


def test_messages_of_the_library_name_arguments_and_not_flags():
    """`as_flags` makes flags of them, so that users of Python read no flags."""
    names = {field.name for field in dataclasses.fields(config.RunConfig)} | {"output", "format"}
    package = ROOT / "tf_pflego"
    of_program = {package / "main.py", package / "runs" / "config.py"}
    of_program |= {package / f"runs/{name}_settings.py" for name in ("table", "device")}
    of_program |= set((package / "program").glob("*.py"))
    for path in set(package.rglob("*.py")) - of_program:
        for text in texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            assert not names & set(re.findall(r"--(\w+)", text)), f"{path}: {text}"
