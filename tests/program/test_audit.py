"""The verb audit, on a run whose noise is as claimed and on one whose noise is not."""

import re

import numpy as np
import pytest

import tf_pflego as pfl
from tests.methods import thorough
from tests.starts import in_this_process
from tf_pflego.aggregation import privacy, wrapping


@pytest.fixture(scope="module", name="run")
def run_fixture(digits_dir, tmp_path_factory):
    output = tmp_path_factory.mktemp("audit") / "private"
    config = pfl.RunConfig(
        dataset="digits",
        num_clients=11,
        new_clients=1,
        clients_per_round=10,
        participation="binomial",
        dp_noise_multiplier=1.5,
        clip_norm=0.5,
        engine="in_process",
        num_rounds=3,
        data_dir=digits_dir,
        output_dir=output,
    )
    pfl.run(config, local_steps=1)
    return output


# Runs with as many clients would share what is traced.
@pytest.mark.parametrize(("share_of_noise", "count"), [thorough(1.0, 60), (0.5, 61)])
def test_a_run_is_audited(share_of_noise, count, run, digits_dir, capsys, monkeypatch):
    monkeypatch.setattr(wrapping, "secret_seed", lambda: np.array([1, 2]))
    noise = privacy._noise
    monkeypatch.setattr(
        privacy,
        "_noise",
        lambda like, deviation, seed: noise(like, share_of_noise * deviation, seed),
    )
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    flags = [f"--run={run}", f"--data_dir={digits_dir}", f"--canaries={count}", "--confidence=0.9"]
    result = in_this_process(["audit", *flags], capsys)
    claimed, bound, *last = result.stdout.splitlines()
    # All take part in each round, so that the claim is that of the run, whoever is beside.
    with pfl.load_run(run) as stored:
        of_run = stored.metrics["privacy_epsilon"][-1]
    assert claimed == f"epsilon claimed      {of_run:.3f}, delta 1e-05, 3 rounds"
    pattern = rf"epsilon at least     (.*), confidence 90 %, (\d+) of {count} canaries recognised"
    at_least, recognised = re.fullmatch(pattern, bound).groups()
    if share_of_noise == 1:
        assert (result.returncode, len(last)) == (0, 1)
        assert 0 < float(at_least) < of_run
    else:
        assert (result.returncode, last) == (4, [])
        assert "There is less noise than claimed" in result.stderr
        assert float(at_least) > of_run
    assert 10 < int(recognised) < count
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
