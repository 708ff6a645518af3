"""A server is started, and goes on, by flags."""

import numpy as np
import pytest

from tests.devices.federation import NAMES
from tests.devices.server.clients import residents
from tests.starts import done, in_this_process
from tf_pflego.devices.definition import Definition


@pytest.mark.thorough
def test_a_server_goes_on(tmp_path, capsys):
    rng = np.random.default_rng(0)
    arrays = {}
    for split in ("train", "test"):
        arrays[f"{split}_examples"] = rng.normal(size=(8, 3)).astype(np.float32)
        arrays[f"{split}_labels"] = np.arange(8) % 4
    np.savez(tmp_path / "sample.npz", **arrays)
    flags = ["serve", f"--client_names={','.join(NAMES)}", f"--sample={tmp_path / 'sample.npz'}"]
    flags += ["--network=mlp", "--label_space=global", "--clients_per_round=3", "--quiet"]
    path = tmp_path / "definition.json"
    done([*flags, f"--define={path}"], capsys)
    flags += [f"--output_dir={tmp_path / 'run'}", "--resume"]
    for rounds in (1, 2):  # At the end the clients stop; for more rounds they begin again.
        with residents(Definition.load(path), tmp_path) as sockets:
            more = [f"--sockets={sockets}", f"--num_rounds={rounds}"]
            served = in_this_process([*flags, *more], capsys)
        assert served.returncode == 0, served.stderr
        metrics = tmp_path / "run" / "metrics.jsonl"
        assert len(metrics.read_text().splitlines()) == rounds
