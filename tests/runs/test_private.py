"""Runs with differential privacy: killed and resumed, and what their files say and do not say."""

import json
import re
import signal

import absl.flags
import numpy as np
import pytest

import tf_pflego as pfl
from tests.methods import thorough
from tests.runs.resumed import FINISHED, SMALL, contents, outcome
from tests.starts import ENTRY, assert_refused, in_this_process, program
from tf_pflego.program import flags as program_flags

PRIVATE = (
    *SMALL,
    "--num_rounds=7",
    "--participation=binomial",
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
    flags = (*PRIVATE, f"--data_dir={digits_dir}", "--resume")
    code = "import sys; from tests.runs.resumed import die_before\n"
    code += f"die_before(int(sys.argv.pop(1)), {str(output)!r})\n{ENTRY}"
    if is_killed:
        result = program(64, *flags, f"--output_dir={output}", code=code)
        assert result.returncode == -signal.SIGKILL, result.stderr
    else:
        arguments = [*flags, f"--output_dir={output}"]
        program_flags.define_flags(values := absl.flags.FlagValues(), arguments)
        values(["program", *arguments])
        run_config, hyper_parameters, _ = program_flags.from_flags(values)
        with pytest.raises(KeyboardInterrupt):
            pfl.run(run_config, stop, **hyper_parameters)
    assert list((output / "checkpoints").glob("checkpoint-[2-6].json"))
    copy.mkdir()
    for path, content in contents(output).items():
        (copy / path).parent.mkdir(exist_ok=True)
        (copy / path).write_bytes(content)
    for directory in (output, copy):
        result = in_this_process([*flags, f"--output_dir={directory}"], capsys)
        assert result.returncode == 0, result.stderr
        assert re.search(r"round 7/7 .*, epsilon [78]\.\d\d ", result.stderr)
        assert "epsilon of differential privacy" in result.stdout
    assert outcome(output) == outcome(copy)
    assert sorted(path.name for path in output.iterdir()) == FINISHED

    # The seed of the noise is in the checkpoints, and nowhere else.
    checkpoint = max((output / "checkpoints").glob("server-*.npz"))
    with np.load(checkpoint) as arrays:
        seed = arrays["wrapper/0/seed"]
    assert seed.dtype == np.int64
    forms = [seed.tobytes(), *(word.tobytes() for word in seed), *(str(w).encode() for w in seed)]
    for path, content in contents(output).items():
        if path.parts[0] != "checkpoints":
            assert not any(form in content for form in forms), path
    with np.load(output / "server.npz") as arrays:
        assert not any(name.startswith("wrapper") for name in arrays)
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    epsilons = [record["privacy_epsilon"] for record in records]
    assert 0 < epsilons[0] and epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(8, rel=1e-3)
    assert epsilons[-1] <= 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dp_epsilon=1", "--dp_noise_multiplier=2"], "must be given without --dp_noise"),
        (["--dp_epsilon=1", "--robust_sum=median"], "must be given without --robust_sum"),
        (["--dp_epsilon=1", "--secure_sum_bits=24"], "or take dp_mechanism=skellam"),
        (["--dp_epsilon=1", "--dp_mechanism=skellam"], "--secure_sum_bits must be given with"),
        (["--secure_sum_bits=24"], "--clip_norm must be a number"),
        (["--secure_sum_bits=2", "--clip_norm=1"], "--secure_sum_bits must be at least 4"),
        (["--robust_sum=norm_bound"], "--clip_norm must be a number"),
        thorough(
            ["--dp_epsilon=1", "--algorithm=pgfed", "--clip_norm=1"],
            "must see of each client alone",
        ),
        (["--dp_epsilon=1", "--participation=range", "--clients_per_round_range=1,3"], "range"),
    ],
)
def test_what_does_not_go_together_is_refused(digits_dir, tmp_path, capsys, flags, message):
    output = tmp_path / "run"
    small = [flag for flag in SMALL if not flag.startswith("--local_steps")]
    arguments = [*small, "--num_rounds=2", *flags, f"--data_dir={digits_dir}"]
    assert_refused(in_this_process([*arguments, f"--output_dir={output}"], capsys), message)
    assert not output.exists()
