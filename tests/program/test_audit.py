"""The verb audit, on a run whose noise is as claimed and on one whose noise is not."""

import json
import os
import re
import shutil

import numpy as np
import pytest

import tf_pflego as pfl
from tests.runs.resumed import contents, records_of
from tests.starts import in_this_process
from tf_pflego.aggregation import privacy


@pytest.fixture(scope="module", name="run")
def run_fixture(run_of):
    private = {"dp_noise_multiplier": 1.5, "clip_norm": 0.5, "participation": "binomial"}
    clients = {"num_clients": 11, "num_new_clients": 1, "clients_per_round": 10}
    return run_of("pflego", **private, **clients, num_rounds=3, local_steps=1)


@pytest.fixture(scope="module", autouse=True)
def traces():
    """They are not shared, since noise that is changed would stay in them."""


@pytest.mark.thorough
@pytest.mark.parametrize("share_of_noise", [1.0, 0.5])
def test_a_run_is_audited(share_of_noise, run, digits_dir, capsys, monkeypatch):
    secrets = np.random.default_rng(1)  # One in ten would be refuted at this confidence.
    monkeypatch.setattr(os, "urandom", secrets.bytes)
    normals = privacy.normals
    monkeypatch.setattr(
        privacy, "normals", lambda count, seed: share_of_noise * normals(count, seed)
    )
    before = contents(run)
    flags = [f"--run={run}", f"--data_dir={digits_dir}", "--canaries=60", "--confidence=0.9"]
    result = in_this_process(["audit", *flags], capsys)
    shown = {line[:21].strip(): line[21:] for line in result.stdout.splitlines()}
    # All take part in each round, so that the claim is that of the run, whoever is beside.
    with pfl.load_run(run) as stored:
        of_run = stored.metrics["privacy_epsilon"][-1]
    assert shown["epsilon claimed"] == f"{of_run:.3f}, delta 1e-05, 3 rounds"
    pattern = r"(.*), confidence 90 %, (\d+) of 60 canaries recognised"
    at_least, recognised = re.fullmatch(pattern, shown["epsilon at least"]).groups()
    if share_of_noise == 1:
        assert (result.returncode, result.stderr) == (0, "")
        assert shown["looked inside"] == "noise, bound and draws are as claimed"
        assert 0 < float(at_least) < of_run
    else:
        assert result.returncode == 4 and len(shown) == 2
        assert "has 0.5 times the deviation that is claimed" in result.stderr
        assert f"epsilon is at least {at_least}, as canaries show" in result.stderr
        assert float(at_least) > of_run
    assert 10 < int(recognised) < 60
    assert before == contents(run)


@pytest.mark.thorough
def test_a_ledger_that_counts_too_few_sums_is_refuted(run, digits_dir, tmp_path, capsys):
    copy = shutil.copytree(run, tmp_path / "copy")
    records = records_of(copy)
    for record in records:
        record["privacy_epsilon"] = records[0]["privacy_epsilon"]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    flags = [f"--run={copy}", f"--data_dir={digits_dir}", "--canaries=1"]
    result = in_this_process(["audit", *flags], capsys)
    assert result.returncode == 4
    assert "3 sums with a noise multiplier of 1.5 have an epsilon of" in result.stderr
