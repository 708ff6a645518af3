"""A server is started, and goes on, by flags."""

import pytest

import tf_pflego as pfl
from tests.devices.federation import NAMES
from tests.devices.server.clients import residents
from tests.starts import done, in_this_process
from tf_pflego.devices.definition import Definition


@pytest.mark.thorough
def test_a_server_goes_on_with_a_table_as_sample(tmp_path, capsys):
    rows = ["who,age,said,label", *(f"{row % 2},{row},good bad bad,{row % 4}" for row in range(16))]
    table = tmp_path / "sample.csv"
    table.write_text("\n".join(rows))
    flags = ["serve", f"--client_names={','.join(NAMES)}", "--name=sites", f"--table={table}"]
    flags += ["--client_column=who", "--label_column=label", "--text_columns=said"]
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
    assert pfl.load_run(tmp_path / "run").configuration["dataset"] == "sites"
