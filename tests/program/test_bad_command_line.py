"""Bad command lines: one line says what was expected, what came and what to do; nothing is lost."""

import ast
import dataclasses
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.program.test_main import ROOT, in_this_process
from tf_pflego.program import command_line
from tf_pflego.runs import config, training

pytestmark = pytest.mark.same_on_both_lines


INT_LIMIT, FLOAT_LIMIT, SEED_LIMIT = "1000000000", "1e+18", str(2**63 - 1)
HUGE = str(10**30)

# The least value of each whole number of the run and of its methods; a method that has it.
WHOLE = {
    "num_rounds": (1, "pflego"),
    "num_clients": (0, "pflego"),
    "classes_per_client": (0, "pflego"),
    "min_examples": (1, "pflego"),
    "new_clients": (0, "pflego"),
    "new_client_epochs": (0, "pflego"),
    "eval_every": (1, "pflego"),
    "train_loss_every": (1, "pflego"),
    "eval_clients": (0, "pflego"),
    "checkpoint_every": (0, "pflego"),
    "checkpoints_kept": (1, "pflego"),
    "local_steps": (1, "pflego"),
    "local_epochs": (1, "pgfed"),
    "batch_size": (0, "pgfed"),
    "personal_steps": (1, "pfedme"),
    "models_received": (1, "fedfomo"),
    "fine_tuning_steps": (0, "fedbabu"),
    "schedule_rounds": (0, "pflego"),
    "head_epochs": (0, "fedrep"),
    "body_steps": (0, "fedrep"),
}
# Numbers that must be above 0.
ABOVE = {
    "dirichlet_alpha": "pflego",
    "activation_gigabytes": "pflego",
    "new_client_learning_rate": "pflego",
    "client_learning_rate": "pgfed",
    "server_learning_rate": "pflego",
    "envelope_weight": "pfedme",
    "validation_share": "fedfomo",
}

ROWS = [
    # Whole numbers.
    *(
        row
        for name, (least, method) in WHOLE.items()
        for row in (
            ([f"--algorithm={method}", f"--{name}={least - 1}"], f"at least {least}; got", "Raise"),
            ([f"--algorithm={method}", f"--{name}={HUGE}"], f"at most {INT_LIMIT}; got", "Lower"),
            ([f"--algorithm={method}", f"--{name}=1.5"], "a whole number; got '1.5'", "Correct"),
        )
    ),
    (["--num_rounds="], "--num_rounds must be a whole number; got ''", "Correct --num_rounds"),
    (["--num_rounds=1e3"], "--num_rounds must be a whole number; got '1e3'", "Correct"),
    (["--num_rounds"], "--num_rounds must have a value; got none", "Write --num_rounds=VALUE"),
    (["--num_rounds=" + 5000 * "9"], "--num_rounds must be a whole number; got '9999", "Correct"),
    (["--clients_per_round=-3"], "at least 1; got -3", "Raise --clients_per_round"),
    (["--clients_per_round=99999999999"], f"at most {INT_LIMIT}; got 99999999999", "Lower"),
    (["--seed=-1"], "--seed must be at least 0; got -1", "Raise --seed"),
    ([f"--seed={2**63}"], f"--seed must be at most {SEED_LIMIT}; got {2**63}", "Lower --seed"),
    # Numbers.
    *(
        row
        for name, method in ABOVE.items()
        for row in (
            ([f"--algorithm={method}", f"--{name}=0"], "must be above 0; got 0.0", "Raise"),
            ([f"--algorithm={method}", f"--{name}=nan"], "a finite number; got nan", "Correct"),
            ([f"--algorithm={method}", f"--{name}=-inf"], "a finite number; got -inf", "Correct"),
            ([f"--algorithm={method}", f"--{name}=1e-60"], "at least 1.2e-38 in size", "Raise"),
        )
        if not (name == "client_learning_rate" and method == "pflego")
    ),
    (["--server_learning_rate=1e300"], f"at most {FLOAT_LIMIT}; got 1e+300", "Lower --server_l"),
    (["--client_learning_rate=inf"], "a finite number or auto; got inf", "Correct --client_lear"),
    (["--client_learning_rate=-1"], "must be above 0; got -1.0", "Raise --client_learning_rate"),
    (["--client_learning_rate=fast"], "must be a number or auto; got 'fast'", "Correct --client_"),
    (["--algorithm=pgfed", "--momentum=1.5"], "--momentum must be at most 1; got 1.5", "Lower"),
    (["--algorithm=pgfed", "--momentum=-0.1"], "must be at least 0; got -0.1", "Raise --momentum"),
    (["--algorithm=apfl", "--mixing=2"], "--mixing must be at most 1; got 2.0", "Lower --mixing"),
    (["--algorithm=fedfomo", "--validation_share=1"], "must be below 1; got 1.0", "Lower --valid"),
    (["--algorithm=pgfedmo", "--risk_momentum=1"], "must be below 1; got 1.0", "Lower --risk_mo"),
    (["--algorithm=fedper", "--client_learning_rate=auto"], "a finite number; got 'auto'", "Corr"),
    (["--head_solver=adam", "--client_learning_rate=auto"], "a number for Adam", "Try --client_"),
    # Choices and truth values.
    (["--algorithm=sgd"], "--algorithm must be one of pflego, ", "got 'sgd'. Correct --algorithm"),
    (["--algorithm="], "--algorithm must be one of pflego, ", "got ''. Correct --algorithm"),
    (["--algorithm=pflgo"], "got 'pflgo'. Did you mean pflego?", "Correct --algorithm"),
    (["--engine=gpu"], "--engine must be one of tff, in_process, ray; got 'gpu'", "Correct --eng"),
    (["--dataset=MNIST"], "--dataset must be one of digits, ", "got 'MNIST'. Did you mean mnist?"),
    (["--dataset=mnits"], "got 'mnits'. Did you mean mnist?", "Correct --dataset"),
    (["--network=resnet"], "--network must be one of auto, mlp", "Correct --network"),
    (["--partition=iid"], "--partition must be one of auto, round_robin", "Correct --partition"),
    (["--participation=all"], "--participation must be one of fixed, binomial, range", "Correct"),
    (["--personalization=max"], "--personalization must be one of high, medium, no", "Correct"),
    (["--label_space=mine"], "--label_space must be one of local, global", "Correct"),
    (["--head_solver=sgd"], "--head_solver must be one of gd, ", "Correct --head_solver"),
    (["--server_optimizer=lamb"], "--server_optimizer must be one of adam, ", "Correct"),
    (["--server_optimizer=none"], "yogi, adagrad, muon; got 'none'", "Correct"),
    (["--server_schedule=linear"], "one of constant, late_linear, last_fifth, cosine", "Correct"),
    (
        ["--server_schedule=cosine", "--schedule_rounds=5", "--num_rounds=6"],
        "--schedule_rounds must be 0 or at least the 6 rounds of the run",
        "Raise --schedule_rounds",
    ),
    (["--download=maybe"], "--download must be true or false; got 'maybe'", "Correct --download"),
    (["--noresume=1"], "--noresume must have no value; got '1'", "Leave out the value"),
    # Flags that there are not.
    (["--learning_rate=1"], "must be one of those that --help lists; got --learning_rate", "leave"),
    (["--num_round=3"], "got --num_round", "Did you mean --num_rounds?"),
    (["--client_per_round=3"], "Did you mean --clients_per_round or --clients_per_round_range?",
     "leave"),
    (["train", "x"], "expected flags only; got 'x'", "Write flags as --name=value"),
    (["--", "--num_rounds=3"], "expected flags only; got '--num_rounds=3'", "Write flags as"),
    (["-x"], "must be one of those that --help lists; got --x", "Correct it or leave it out"),
    # Flag files.
    (["--flagfile="], "--flagfile must name a file; got nothing", "Write --flagfile=FILE"),
    (["--flagfile"], "--flagfile must name a file; got nothing", "Write --flagfile=FILE"),
    (["--flagfile=nowhere"], "must be a file that can be read; got 'nowhere'", "Correct the path"),
    (["--flagfile", "nowhere"], "can be read; got 'nowhere' (No such file", "Correct the path"),
    (["--flagfile={tmp}"], "must be a file that can be read; got '{tmp}' (it is no reg",
     "Correct the path"),
    (["--flagfile={tmp}/binary"], "{tmp}/binary' (it is no text)", "Correct the path"),
    (["--flagfile={tmp}/itself"],
     "must not include itself; got '{tmp}/itself' again in {tmp}/itself"
     ", line 2", "Leave that line out"),
    (["--flagfile={tmp}/first"], "itself; got '{tmp}/first' again in {tmp}/second, line 1",
     "Leave"),
    (["--flagfile={tmp}/unknown"], "got --nonsense in {tmp}/unknown, line 3",
     "Correct it or leave"),
    (["--flagfile={tmp}/words"], "got 'hello there' in {tmp}/words, line 1", "Correct the line"),
    (["--flagfile={tmp}/value"], "number; got 'x' in {tmp}/value, line 1", "Correct --num_rounds"),
    (["--flagfile={tmp}/lost"], "got '{tmp}/none' in {tmp}/lost, line 1 (No such", "Correct the"),
    (["--flagfile=~nosuchuser/x"], "must be a file that can be read; got '~nosuchuser/x'",
     "Correct"),
    # Places.
    (["--output_dir=~nosuchuser/x"], "--output_dir must be a path whose user is known",
     "Write the"),
    (["--data_dir=~nosuchuser/x"], "--data_dir must be a path whose user is known", "Write the di"),
    (["--output_dir=gs://bucket/x"], "must be a path of this machine; got 'gs://",
     "Copy the files"),
    (["--data_dir=gs://bucket/x"], "must be a path of this machine; got 'gs://", "Copy the files"),
    (["--data_dir=s3://bucket"], "must be a path of this machine; got 's3://", "Copy the files"),
    (["--output_dir=a\ud800"], "--output_dir must be a path of characters that the file",
     "Correct --"),
    (["--output_dir=a\0b"], "--output_dir must be a path of characters that the file",
     "Correct --out"),
    (["--output_dir=/proc/run"], "--output_dir must be a directory that can be written",
     "Choose an"),
    (["--output_dir={tmp}/words"], "--output_dir must be a directory that can be writ",
     "Choose an"),
    (["--output_dir={tmp}/words/in"], "must be a directory that can be written; {tmp}/",
     "Choose an"),
    (["--output_dir={tmp}/" + 300 * "x"], "must be a directory that can be written",
     "Choose anoth"),
    (["--output_dir={tmp}/held"], "must not hold another run; {tmp}/held has config.json",
     "--overw"),
    (["--output_dir={tmp}/held", "--resume"], "config.json is damaged, and there is no checkpoint",
     "Start anew with --overwrite"),
    (["--resume"], "--resume must be given with --output_dir; got no output_dir",
     "Correct --resume"),
    (["--resume", "--overwrite", "--output_dir={tmp}/x"], "without --overwrite; got both",
     "Correct"),
    (["--dataset=mnist", "--data_dir={tmp}/no"], "mnist is not in {tmp}/no",
     "fetched with --download"),
    (["--dataset=mnist", "--data_dir={tmp}/words"], "mnist is not in {tmp}/words",
     "Point --data_dir"),
    (["--flagfile={tmp}/wide0"], "--flagfile must lead to at most 100 files", "Include fewer"),
    (["--flagfile=a\0b"], "got 'a\\x00b' (embedded null byte)", "Correct the path"),
    (["--flagfile={tmp}/fifo"], "must be a file that can be read; got '{tmp}/fifo' (it is no reg",
     "Correct the path"),
    (["--flagfile=/dev/zero"], "got '/dev/zero' (it is no regular file)", "Correct the path"),
    (["--flagfile={tmp}/held"], "got '{tmp}/held' (it is no regular file)", "Correct the path"),
    # Numbers that Python would take.
    *(
        ([f"--{name}={text}"], f"--{name} must be {expected}; got {text!r}", f"Correct --{name}")
        for name, expected, texts in (
            ("num_rounds", "a whole number", ("0x10", "0o17", "1_0", " 3", "3 ", "\u0663", "1e2")),
            ("dirichlet_alpha", "a number", ("0x10", "1_0.5", " 0.5", "\u0663", "1e1_0")),
            ("client_learning_rate", "a number or auto", ("1_0", " 1", "\u0663")),
        )
        for text in texts
    ),
    (["--engine=ray", "--shard_resources=data=1_0"], "got 'data=1_0'", "Set e.g. --shard_res"),
    # A Ray cluster.
    (["--num_shards=0"], "--num_shards must be at least 1; got 0", "Raise --num_shards"),
    (["--num_shards=10001"], "--num_shards must be at most 10000; got", "Lower --num_shards"),
    (["--num_shards=two"], "--num_shards must be a whole number; got 'two'", "Correct --num_sh"),
    (["--ray_address=10.0.0.1"], "--ray_address must be HOST:PORT, auto or empty; got '10.0.0.1'",
     "e.g. --ray_address=10.0.0.1:6379"),
    (["--ray_address=head:70000"], "HOST:PORT, auto or empty; got 'head:70000'", "Write it as"),
    (["--ray_address=ray://head:10001"], "HOST:PORT, auto or empty; got 'ray://he", "Write it as"),
    (["--cpus_per_shard=-1"], "--cpus_per_shard must be at least 0; got -1.0", "Raise --cpus_per"),
    (["--cpus_per_shard=1.5"], "must be a whole number, or a part of one", "Correct --cpus_per_sh"),
    (["--cpus_per_shard=many"], "--cpus_per_shard must be a number; got 'many'", "Correct --cpus"),
    (["--gpus_per_shard=nan"], "must be a finite number; got nan", "Correct --gpus_per_shard"),
    (["--gpus_per_shard=0.00001"], "a part of one from 0.0001 on; got 1e-05", "Correct --gpus_per"),
    (["--shard_resources=data"], "--shard_resources must be NAME=NUMBER,... with numbers that are",
     "Set e.g. --shard_resources=data=1"),
    (["--shard_resources==1"], "--shard_resources must be NAME=NUMBER,...", "Set e.g. --shard_r"),
    (["--shard_resources=data=0"], "or below 1; got 'data=0'", "Set e.g. --shard_resources"),
    (["--shard_resources=a=1,b=1.5"], "or below 1; got 'a=1,b=1.5'", "Set e.g. --shard_resources"),
    (["--shard_resources=GPU=1"], "other resources than CPU and GPU", "Set --gpus_per_shard inst"),
    (["--node_deadline=0"], "--node_deadline must be above 0; got 0.0", "Raise --node_deadline"),
    (["--node_deadline=soon"], "--node_deadline must be a number; got 'soon'", "Correct --node_de"),
    # What contradicts itself.
    (["--personalization=high",
     "--classes_per_client=3"], "--personalization must not be given with "
     "--classes_per_client", "got high and 3. Leave one of them out"),
    (["--participation=range"], "--clients_per_round_range must be two whole numbers",
     "Set e.g. --c"),
    (["--participation=range",
     "--clients_per_round_range=4"], "two whole numbers, least,most; got '4'",
     "Set e.g. --clients_per_round_range=4,28"),
    (["--participation=range", "--clients_per_round_range=1,2,3"], "got '1,2,3'",
     "Set e.g. --clients"),
    (["--participation=range", "--clients_per_round_range=1,\u00b2"], "two whole numbers",
     "Set e.g."),
]  # fmt: skip

# These load the digits before they are refused.
WITH_DATA = [
    (["--num_clients=1000000000"], "--num_clients must be at most 1438", "Lower --num_clients"),
    (["--num_clients=360"], "must be at most 359, the number of test examples", "Lower"),
    (["--num_clients=2", "--clients_per_round=1"], "--num_clients must be at least 5, so that",
     "Raise --num_clients"),
    (["--classes_per_client=11"], "--classes_per_client must be in [1, 10]",
     "Lower --classes_per_c"),
    (["--clients_per_round=101"], "must be in [1, num_clients=100]; got 101",
     "Lower --clients_per"),
    (["--participation=range", "--clients_per_round_range=5,101"], "most <= num_clients=100",
     "Set --"),
    (["--participation=range", "--clients_per_round_range=9,5"], "least <= most",
     "Set --clients_per"),
    (["--new_clients=100"], "must be fewer than the 100 clients; got 100", "Lower --new_clients"),
    (["--partition=groups"], "--partition must be round_robin or dirichlet", "Correct --partition"),
    (["--partition=dirichlet", "--min_examples=500"], "must be at most 17",
     "Lower --min_examples or"),
    (["--partition=dirichlet", "--min_examples=2"], "--min_examples must be at least 4",
     "Raise --min"),
    (["--permuted_clients=0.001"], "--permuted_clients must be 0 or a share that is at least one "
     "of the 100 clients", "Raise --permuted_clients"),
    (["--network=omniglot_cnn"], "--network omniglot_cnn needs larger images",
     "Choose --network=mlp"),
]  # fmt: skip

# Flags that are given and not read; another flag then ends the program.
IGNORED = [
    (["--dirichlet_alpha=0.5"], "--dirichlet_alpha has no effect without --partition=dirichlet"),
    (["--class_mask"], "--class_mask has no effect without --label_space=global"),
    (["--min_examples=50"], "--min_examples has no effect without --partition=dirichlet"),
    (["--partition=dirichlet", "--personalization=no"], "--personalization has no effect without "
     "--partition=round_robin"),
    (["--partition=dirichlet",
     "--classes_per_client=3"], "has no effect without --partition=round_robin"),
    (["--shift=invert"], "--shift has no effect without --shifted_clients"),
    (["--omniglot_splits=train"], "--omniglot_splits has no effect without --dataset=omniglot"),
    (["--clients_per_round_range=3,4"], "has no effect without --participation=range"),
    (["--schedule_rounds=300"], "--server_schedule=late_linear or last_fifth or cosine"),
    (["--overwrite"], "--overwrite has no effect without --output_dir"),
    (["--checkpoint_every=5"], "--checkpoint_every has no effect without --output_dir"),
    (["--checkpoints_kept=5"], "--checkpoints_kept has no effect without --output_dir"),
    (["--tensorboard"], "--tensorboard has no effect without --output_dir"),
    (["--new_client_epochs=5"], "--new_client_epochs has no effect without --new_clients"),
    (["--new_client_learning_rate=5"], "has no effect without --new_clients"),
    (["--num_shards=3"], "--num_shards has no effect without --engine=ray"),
    (["--ray_address=auto"], "--ray_address has no effect without --engine=ray"),
    (["--shard_resources=data=1"], "--shard_resources has no effect without --ray_address"),
    (["--node_deadline=5"], "--node_deadline has no effect without --ray_address"),
    (["--server_mixing=0.5"], "pflego has no --server_mixing"),
]  # fmt: skip


def name_of(value):
    return " ".join(value)[:60] if isinstance(value, list) else ""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with flag files, good for nothing, and with something that looks like a run."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "binary").write_bytes(bytes(range(256)))
    texts = {
        "itself": "--num_rounds=3\n--flagfile={tmp}/itself\n",
        "first": "--flagfile={tmp}/second\n",
        "second": "--flagfile={tmp}/first\n",
        "unknown": "# a comment\n\n--nonsense=3\n",
        "words": "hello there\n",
        "value": "--num_rounds=x\n",
        "lost": "--flagfile={tmp}/none\n",
        # Each includes the next one twice: 2^40 files in all.
        **{f"wide{k}": 2 * f"--flagfile={{tmp}}/wide{k + 1}\n" for k in range(40)},
        "wide40": "--num_rounds=3\n",
    }
    for name, text in texts.items():
        (directory / name).write_text(text.format(tmp=directory))
    os.mkfifo(directory / "fifo")
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


@pytest.mark.parametrize(("arguments", "said", "remedy"), WITH_DATA, ids=name_of)
def test_what_does_not_fit_the_data_is_one_line(arguments, said, remedy, files, digits_dir, capsys):
    arguments = [f"--data_dir={digits_dir}", "--engine=in_process", *arguments]
    assert_refused(arguments, (said, remedy), files, capsys)


@pytest.mark.parametrize(("arguments", "said"), IGNORED, ids=name_of)
def test_what_has_no_effect_is_said(arguments, said, files, capsys):
    end = ["--dataset=mnist", "--data_dir={tmp}/none"]
    assert_refused([*end, *arguments], (f"{said}; it is ignored",), files, capsys, lines=2)


def test_all_flags_of_ray_have_no_effect_on_another_engine(files, capsys):
    arguments = ["--ray_address=auto", "--cpus_per_shard=2", "--gpus_per_shard=1"]
    said = [
        f"{argument.split('=')[0]} has no effect without --engine=ray" for argument in arguments
    ]
    end = ["--dataset=mnist", "--data_dir={tmp}/none", "--engine=in_process"]
    assert_refused([*end, *arguments], said, files, capsys, lines=4)


@pytest.mark.parametrize("engine", ["tff", "ray"])
def test_an_engine_that_is_not_installed_is_one_line(engine, files, capsys):
    if importlib.util.find_spec({"tff": "tensorflow_federated"}.get(engine, engine)):
        pytest.skip(f"the engine {engine} is installed here")
    expected = f"--engine {engine} needs", "nstall it: `pip install"
    assert_refused([f"--engine={engine}"], expected, files, capsys)


def test_the_last_of_two_values_counts_and_a_default_says_nothing(files, capsys):
    arguments = ["--num_rounds=x", "--num_rounds=0", "--nooverwrite"]
    assert_refused(arguments[1:], ("at least 1",), files, capsys)
    assert_refused(arguments, ("got 'x'",), files, capsys)


def run(code, *arguments):
    """Runs the program in a process of its own, after some code."""
    program = f"{code}\nfrom tf_pflego.main import entry_point\nentry_point()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [["--num_clients=20", "--clients_per_round=30"], ["--output_dir={tmp}/held"]],
    ids=name_of,
)
def test_what_needs_no_data_is_refused_before_tensorflow_is_started(arguments, files):
    arguments = [argument.replace("{tmp}", str(files)) for argument in arguments]
    before = contents(files)
    result = run("", "--engine=in_process", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("tf_pflego: --")  # And not with "starting TensorFlow".
    assert contents(files) == before


@pytest.mark.parametrize(
    "arguments",
    [["--local_steps=" + HUGE], ["--flagfile=/dev/zero"], ["--output_dir=~nosuchuser/x"]],
    ids=name_of,
)
def test_as_a_process(arguments):
    result = run("", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("tf_pflego: --")
    assert result.stderr.count("\n") == 1


FAULTS = [
    ("MemoryError()", 2, "the run must fit the memory", "Lower --clients_per_round"),
    ("tf.errors.ResourceExhaustedError(None, None, 'OOM')", 2, "fit the memory; it does not (OOM",
     "--activation_gigabytes"),
    ("grpc.RpcError('gone')", 2, "the TFF worker must answer; it does not (gone)", "--resume"),
    ("OSError(28, 'No space left on device', '/x')", 2, "No space left on device: '/x'", "Free or"),
    ("OverflowError('too large')", 1, "got OverflowError (too large)", "Its traceback is in"),
    ("RecursionError('deep')", 1, "got RecursionError (deep)", "Its traceback is in"),
    ("tf.errors.InternalError(None, None, 'a\\nb')", 1, "got InternalError (a b)",
     "traceback is in"),
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

    monkeypatch.setattr(training, "run", fail)
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
    of_program |= set((package / "program").glob("*.py"))
    for path in set(package.rglob("*.py")) - of_program:
        for text in texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            assert not names & set(re.findall(r"--(\w+)", text)), f"{path}: {text}"
