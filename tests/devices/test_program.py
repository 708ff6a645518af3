"""The verb `client`: a process that begins, is killed, goes on and leaves its model."""

import contextlib
import json
import os
import re
import signal

import numpy as np
import pytest

from tests import programs
from tests.devices.federation import Site, config_of, planned, site_of, two_steps
from tests.devices.test_client_directory import exchanged, same
from tests.devices.test_requests import EVALUATE, EXCHANGE, ROUND, theta_of
from tests.programs import Begun
from tests.starts import ENTRY, TIMEOUT_SECONDS, begun, done, in_this_process, replaced
from tf_pflego.devices import frames, messages, preview
from tf_pflego.devices.definition import Definition

KILL = "lambda *unused: os.kill(os.getpid(), signal.SIGKILL)"
KILLED = f"import os, signal\nfrom tf_pflego.devices import frames\nframes.send = {KILL}\n{ENTRY}"
KILLED_AT_ITS_BEGIN = (
    f"import os, signal\nfrom tf_pflego.system import durable\ndurable.Batch.npz = {KILL}\n{ENTRY}"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with the definition and the file of north, and another client's."""
    directory = tmp_path_factory.mktemp("files")
    two_steps().save(directory / "definition.json")
    for number, name in enumerate(("north", "south")):
        np.savez(directory / f"{name}.npz", **site_of(number))
    (directory / "open").mkdir(mode=0o755)
    return directory


def first_flags(files, *more):
    return replaced("client", f"--definition={files}/definition.json", "--name=north", *more)


def listening(running, directory):
    while running.poll(0.05) is None:
        # There may be none yet, or that of a client that was killed.
        with contextlib.suppress(OSError):
            return frames.connected(directory / "socket", TIMEOUT_SECONDS)
    raise AssertionError(running.communicate())


def asked(link, definition, arrays, facts):
    facts = {"definition": definition.identity, "all_examples": 18} | facts
    facts, arrays = messages.unpacked(frames.ask(link, messages.packed(facts, arrays)))
    assert facts.pop("to")
    return facts, arrays


@pytest.mark.thorough
def test_a_site_is_told_of_the_noise_and_refuses_more_epsilon_than_it_agrees_to(
    files, tmp_path, capsys
):
    private = {"dp_epsilon": 4.0, "clip_norm": 1.0, "client_weights": "uniform", "num_rounds": 3}
    definition = Definition.of(planned(config_of(**private), local_steps=2))
    definition.save(tmp_path / "private.json")
    lines = preview.promised(Site(definition, 0, tmp_path).resident, definition)
    assert "  It is private: epsilon 4, delta 1e-05 after 3 rounds; mechanism gaussian, " in (
        line[: line.index("bound")] for line in lines if "bound" in line
    )
    assert any(line.startswith("  The server is trusted with uploads: ") for line in lines)
    flags = ["client", "--name=north", f"--data={files}/north.npz", "--check"]
    for file, most, got in (
        (tmp_path / "private.json", 3.9, "got 4. Raise --most_epsilon"),
        (files / "definition.json", 3.9, "got none, since nothing is noised. Raise --most_epsilon"),
        (tmp_path / "private.json", 4.1, None),
    ):
        arguments = [*flags, f"--definition={file}", f"--most_epsilon={most}"]
        result = in_this_process(arguments, capsys)
        assert result.returncode == (2 if got else 0), result.stderr
        assert got is None or got in result.stderr


@pytest.mark.thorough
def test_a_client_that_is_killed_goes_on_from_its_directory(files, tmp_path, capsys):
    definition = Definition.load(files / "definition.json")
    site, home = Site(definition, 0, tmp_path / "beside"), tmp_path / "north"
    flags = first_flags(files, f"--data={files}/north.npz", f"--state_dir={home}", "--consent=log")
    arrays = ROUND | theta_of(site)

    assert programs.run(KILLED_AT_ITS_BEGIN, *flags).returncode == -signal.SIGKILL
    assert (home / "definition.json").exists()
    early = in_this_process(["client", f"--state_dir={home}"], capsys)
    assert early.returncode == 2
    assert f"{home} has none, or one that ended before" in early.stderr

    running = Begun(KILLED, *flags)
    with listening(running, home) as link, pytest.raises(frames.LinkError):
        asked(link, definition, arrays, EXCHANGE)
    assert running.poll(TIMEOUT_SECONDS) == -signal.SIGKILL
    assert (home / "state-1.npz").exists()

    agreed_to = json.loads((home / "client.json").read_text())["agreed_to"]
    (sent,) = [
        re.sub(r"body/(mlp/)?dense(_\d+)?", "body/dense", line)
        for line in agreed_to
        if "it sends" in line
    ]
    weights = "body/dense/kernel [3, 200], body/dense/bias [200]"
    assert sent == f"  it sends    3,200 bytes: {weights} (for a sum)"
    assert "  It learns how many training examples the client has." in agreed_to

    running = begun("client", f"--state_dir={home}")
    with listening(running, home) as link, listening(running, home) as second:
        same(asked(link, definition, arrays, EXCHANGE), exchanged(site))
        served = theta_of(site, "served")
        facts, _ = asked(second, definition, served, EVALUATE | {"state": 1})
        assert facts == {}
        another = in_this_process(["client", f"--state_dir={home}"], capsys)
        assert another.returncode == 2
        assert f"--state_dir must belong to one client; process {running.pid}" in another.stderr
        link.sendall(b"\xff" * 8)
        facts, _ = messages.unpacked(frames.receive(link))
        assert "a message must have at most" in facts["error"]
    running.send_signal(signal.SIGTERM)
    printed, said = running.communicate()
    assert running.returncode == 143
    assert said.splitlines()[-1] == "tf_pflego: interrupted"
    assert "round 1: " in printed
    files_left = {"client.json", "definition.json", "examples.npz", "served.npz", "state-1.npz"}
    assert set(os.listdir(home)) == files_left

    other = first_flags(files, f"--data={files}/south.npz", f"--state_dir={home}")
    result = in_this_process(other, capsys)
    assert result.returncode == 2
    assert "has north, which began with others" in result.stderr

    exported = ["export", f"--run={home}", f"--output_dir={tmp_path / 'models'}", "--format=keras"]
    done(exported, capsys)
    assert os.listdir(tmp_path / "models").count("client_north.keras") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data={}/north.npz"], "--state_dir must be given"),
        (["--definition=", "--name=", "--state_dir={}/typo"], "typo has none"),
        (["--state_dir={}/new"], "--data must be given; got nothing"),
        (["--data={}/north.npz", "--name=nort", "--check"], "Did you mean north?"),
        (["--data={}/none.npz", "--check"], "--data must name .npz files"),
        (["--definition={}/north.npz", "--data={}/north.npz", "--check"], "--definition must be a"),
        (["--data={}/north.npz", "--state_dir={}/new"], "--consent must be log without a terminal"),
        (["--data={}/north.npz", "--state_dir={}/open"], "--state_dir must be open to you only"),
    ],
)
def test_flags_that_are_refused(files, capsys, flags, message):
    result = in_this_process(first_flags(files, *(flag.format(files) for flag in flags)), capsys)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1), result.stderr
    assert message in result.stderr
    assert not (files / "new" / "client.json").exists() and not (files / "typo").exists()


def test_data_are_tried_without_a_server(files, capsys):
    flags = first_flags(files, f"--data={files}/north.npz", "--check")
    result = done(flags, capsys)
    assert "3,200 bytes down, 3,200 up, all finite" in result.stdout
