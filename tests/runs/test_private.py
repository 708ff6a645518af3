"""Runs with differential privacy: killed and resumed, and what their files say and do not say."""

import re
import signal

import absl.flags
import numpy as np
import pytest

import tf_pflego as pfl
from tests.methods import thorough
from tests.runs.resumed import FINISHED, SMALL, contents, outcome, records_of
from tests.starts import ENTRY, assert_refused, done, in_this_process, program, replaced
from tf_pflego.aggregation.accounting import MECHANISMS, Accountant
from tf_pflego.core.participation import Participation
from tf_pflego.program import flags as program_flags
from tf_pflego.runs.progress import remarks_on_privacy
from tf_pflego.simulation.records import TRUSTED_WITH

PRIVATE = (
    *SMALL,
    "--participation=cyclic",  # For which an epsilon is computed in no time.
    "--dp_epsilon=8",
    "--clip_norm=0.2",
)


def stop(record):
    if record["round"] == 4:
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_killed", [False, thorough(True)])
def test_stopped_and_resumed_it_releases_the_same_noise(is_killed, digits_dir, tmp_path, capsys):
    """Its secret is drawn once, so two runs that share it must have shared a checkpoint."""
    output, copy = tmp_path / "run", tmp_path / "copy"
    flags = (*PRIVATE, "--num_rounds=7", f"--data_dir={digits_dir}", "--resume")
    code = "import sys; from tests.runs.resumed import die_before\n"
    code += f"die_before(int(sys.argv.pop(1)), {str(output)!r})\n{ENTRY}"
    if is_killed:
        result = program(100, *flags, f"--output_dir={output}", code=code)
        assert result.returncode == -signal.SIGKILL, result.stderr
    else:
        arguments = [*flags, f"--output_dir={output}"]
        program_flags.define_flags(values := absl.flags.FlagValues(), arguments)
        values(["program", *arguments])
        plan, _ = program_flags.from_flags(values)
        with pytest.raises(KeyboardInterrupt):
            pfl.run(plan.settings, stop, **plan.of_method)
    assert list((output / "checkpoints").glob("checkpoint-[2-6].json"))
    copy.mkdir()
    for path, content in contents(output).items():
        (copy / path).parent.mkdir(exist_ok=True)
        (copy / path).write_bytes(content)
    for directory in (output, copy):
        result = done([*flags, f"--output_dir={directory}"], capsys)
        assert re.search(r"round 7/7 .*, epsilon [78]\.\d\d ", result.stderr)
        assert "epsilon of differential privacy" in result.stdout
    assert outcome(output) == outcome(copy)
    assert sorted(path.name for path in output.iterdir()) == FINISHED

    # The secret is in the checkpoints, which are for their owner alone, and nowhere else.
    checkpoints = sorted((output / "checkpoints").glob("server-*.npz"))
    of_clients = [output / name for name in ("clients.csv", "partition.npz")]
    assert {path.stat().st_mode & 0o777 for path in [*checkpoints, *of_clients]} == {0o600}
    with np.load(checkpoints[-1]) as arrays:
        secret, seeds = arrays["wrapper/0/secret"], arrays["wrapper/0/seeds"]
    assert secret.dtype == np.int64 and len(set(secret)) == 2 and not seeds.any()
    forms = [secret.tobytes(), *(word.tobytes() for word in secret)]
    forms += [str(word).encode() for word in secret]
    for path, content in contents(output).items():
        if path.parts[0] != "checkpoints":
            assert not any(form in content for form in forms), path
    with np.load(output / "server.npz") as arrays:
        assert not any(name.startswith("wrapper") for name in arrays)
    records = records_of(output)
    epsilons = [record["privacy_epsilon"] for record in records]
    assert 0 < epsilons[0] and epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(8, rel=1e-3)
    assert epsilons[-1] <= 8


@pytest.mark.thorough
def test_a_run_that_goes_on_keeps_its_noise_and_ends_before_it_spends_too_much(
    digits_dir, tmp_path, capsys
):
    """Of six clients two take their turn, so that rounds 5 and 6 cost nothing, and round 7 does."""
    output = tmp_path / "run"
    flags = [*PRIVATE, f"--data_dir={digits_dir}", f"--output_dir={output}", "--resume"]
    assert in_this_process([*flags, "--num_rounds=4"], capsys).returncode == 0
    result = done([*flags, "--num_rounds=7"], capsys)
    assert len(records_of(output)) == 6
    more = replaced(*flags, "--num_rounds=7", "--dp_epsilon=20")
    assert done(more, capsys).stderr.count("ends") == 0
    records = records_of(output)
    (multiplier,) = {record["privacy_noise_multiplier"] for record in records}
    assert [record["privacy_releases"] for record in records] == [*range(1, 8)]
    drawn = Participation(6, 2, "cyclic")
    accountant = Accountant(drawn, "gaussian", multiplier, 1e-5, 7)
    for record in records:
        epsilon = accountant.epsilon(record["round"])
        assert record["privacy_epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert records[5]["privacy_epsilon"] == pytest.approx(8, rel=1e-3)
    said = f"epsilon would be {records[-1]['privacy_epsilon']:.3f}, and `dp_epsilon` is 8; to go on"
    assert said in result.stderr or said.replace("`dp_epsilon`", "--dp_epsilon") in result.stderr


@pytest.mark.parametrize(
    ("signal", "clipped", "said"),
    [
        (0.2, 0.5,
         ["the noise was larger than what it hides: the last sum had 0.2 times the norm"]),
        (3.0, 1.0, ["the bound cut 100 % of the last uploads: raise `clip_norm`"]),
        (3.0, 0.01, ["the bound cut 1 % of the last uploads: lower `clip_norm`"]),
        (3.0, 0.5, []),
    ],
)  # fmt: skip
def test_the_end_of_a_run_says_what_fits_badly(signal, clipped, said):
    summary = {"privacy_signal_to_noise": signal, "privacy_clipped_share": clipped}
    trusted, *remarks = remarks_on_privacy(summary | {"privacy_epsilon": 2.0}, "local")
    assert trusted.startswith("the server is trusted with nothing:")
    assert len(remarks) == len(said)
    assert all(remark.startswith(start) for remark, start in zip(remarks, said, strict=True))
    assert remarks_on_privacy({}, "local") == [] and TRUSTED_WITH.keys() == {*MECHANISMS}


@pytest.mark.thorough
def test_banded_noise_does_not_go_on_for_more_rounds(digits_dir, tmp_path, capsys):
    output = tmp_path / "run"
    flags = [*PRIVATE, "--dp_mechanism=banded", f"--data_dir={digits_dir}"]
    flags += [f"--output_dir={output}", "--resume"]
    assert in_this_process([*flags, "--num_rounds=3"], capsys).returncode == 0
    before = contents(output)
    result = in_this_process([*flags, "--num_rounds=5"], capsys)
    assert_refused(result, "--num_rounds must stay 3 with dp_mechanism=banded, since its noise")
    assert {path.name for path in before} == {path.name for path in contents(output)}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dp_epsilon=1", "--dp_noise_multiplier=2"], "must be given without --dp_noise"),
        (["--dp_epsilon=1", "--robust_sum=median"], "must be given without --robust_sum"),
        (["--dp_epsilon=1", "--secure_sum_bits=24"], "or choose dp_mechanism=skellam"),
        (["--dp_epsilon=1", "--dp_mechanism=skellam"], "--secure_sum_bits must be given with"),
        (["--secure_sum_bits=2", "--clip_norm=1"], "--secure_sum_bits must be at least 4"),
        (["--dp_epsilon=1", "--participation=range", "--clients_per_round_range=1,3"], "range"),
        (
            ["--dp_epsilon=1", "--dp_mechanism=banded", "--participation=cyclic"],
            "--clip_norm must be a number for the mechanism banded",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(digits_dir, tmp_path, capsys, flags, message):
    output = tmp_path / "run"
    small = [flag for flag in SMALL if not flag.startswith("--local_steps")]
    arguments = [*small, "--num_rounds=2", *flags, f"--data_dir={digits_dir}"]
    assert_refused(in_this_process([*arguments, f"--output_dir={output}"], capsys), message)
    assert not output.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_spare_clients": 2}, "`num_spare_clients` must be 0 with differential privacy"),
        ({"client_weights": "examples"}, "`client_weights` must be uniform with differential"),
        ({"checkpoint_every": 5}, "`checkpoint_every` must be 1 with differential privacy"),
        ({"dp_mechanism": "local"}, "`dp_mechanism` must be gaussian or banded"),
    ],
)
def test_in_a_real_federation_nobody_takes_part_of_whom_the_accounting_does_not_know(
    changes, message
):
    settings = {
        "engine": "devices",
        "sockets": "sockets",
        "client_names": "a,b,c",
        "clients_per_round": 2,
        "dp_epsilon": 4.0,
        "clip_norm": 1.0,
        "client_weights": "uniform",
        "checkpoint_every": 1,
        "output_dir": "run",
    }
    assert pfl.RunConfig(**settings).dp_epsilon == 4
    with pytest.raises(ValueError, match=message):
        pfl.RunConfig(**settings | changes)
