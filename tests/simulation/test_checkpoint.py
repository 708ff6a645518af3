"""A simulation goes on from a checkpoint to the same bits; whatever is not whole is not used."""

import errno
import functools
import itertools
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.algorithms.test_contract import build, whole_state
from tests.comparison import assert_identical
from tests.conftest import built, make_clients
from tests.methods import thorough
from tf_pflego.core import nests
from tf_pflego.core.participation import Participation
from tf_pflego.simulation import checkpoint
from tf_pflego.simulation.checkpoint import CheckpointError
from tf_pflego.simulation.simulation import Simulation


def plain(record):
    return {key: value for key, value in record.items() if key != "seconds"}


# A state of every kind that the contract allows, no client state, and a growing server state.
@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("everything", "in_process"),
        *(thorough(name, "in_process") for name in ("fedavg", "pgfedmo")),
        thorough("everything", "ray"),
    ],
    indirect=["engine"],
)
def test_a_restored_simulation_goes_on_to_the_same_bits(name, engine, tiny_model, tmp_path):
    """Among the rounds are some without participants.

    Clients are tested before they are drawn, in one of the two alone, since that must not matter.
    """
    clients = make_clients((3, 7, 5, 4), (2, 4, 3, 2), (2, 3, 2, 3))
    algorithm = build(name, tiny_model)
    some = Participation(clients.num_clients, 2, "range", (0, 2))
    saved, restored = (Simulation(algorithm, clients, some, engine, 3) for _ in range(2))
    for _ in range(3):
        saved.run_round(evaluate=True)
    saved.save(tmp_path)
    restored.restore(tmp_path)
    assert_identical(whole_state(saved), whole_state(restored))
    for _ in range(4):
        record, other = (plain(one.run_round(evaluate=True)) for one in (saved, restored))
        assert record == other
    assert_identical(whole_state(saved), whole_state(restored))
    for one in (saved, restored):
        one.close()


CLIENTS = 40


@functools.cache
def model_of(units):
    return pfl.SplitModel(pfl.mlp((2,), seed=1, units=units), num_outputs=2)


def crowd(seed=2, name="pflego", clients=CLIENTS, per_round=3, units=3, examples=5):
    """PFLEGO with forty clients on data of its own."""
    rng = np.random.default_rng(examples)
    train, test = (
        [(rng.normal(size=(3, 2)).astype(np.float32), np.arange(3) % 2) for _ in range(clients)]
        for _ in range(2)
    )
    algorithm = built(name, model_of(units), local_steps=1, client_learning_rate=0.05)
    data, participation = pfl.from_arrays(train, test), pfl.Participation(clients, per_round)
    return Simulation(algorithm, data, participation, "in_process", seed)


def content_of(path):
    return json.loads(path.read_text())["content"]


def test_a_checkpoint_opens_without_this_package(tmp_path):
    simulation = crowd()
    simulation.run_round()
    simulation.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-1.json", "clients-1.npz", "server-1.npz"
    ]  # fmt: skip
    ids = simulation.participation.draw(simulation.seed, 1)
    with np.load(tmp_path / "clients-1.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["ids"], ids)
        assert set(arrays) == {"ids", "state/head"}
        np.testing.assert_array_equal(arrays["state/head"], simulation.client_states(ids).head)
    with np.load(tmp_path / "server-1.npz", allow_pickle=False) as arrays:
        for name, leaf in nests.named(simulation.server_state).items():
            np.testing.assert_array_equal(arrays[name], leaf)
    content = content_of(tmp_path / "checkpoint-1.json")
    assert (content["algorithm"], content["round"], content["num_clients"]) == ("pflego", 1, 40)


@pytest.mark.thorough
def test_segments_are_few_small_and_enough(tmp_path, monkeypatch):
    """Each checkpoint of a hundred rounds restores all states, and the files stay bounded."""
    monkeypatch.setattr(checkpoint, "_SEGMENTS_PER_LEVEL", 3)
    simulation, restored = crowd(), crowd()
    ever, least = set(), []
    for number in range(1, 101):
        simulation.run_round()
        simulation.save(tmp_path)
        drawn = simulation.participation.draw(simulation.seed, number).tolist()
        ever |= set(drawn)
        segments = content_of(tmp_path / f"checkpoint-{number}.json")["clients"]
        rows = [len(np.load(tmp_path / segment["file"])["ids"]) for segment in segments]
        assert sum(rows) <= 2 * len(ever)
        assert len(segments) <= 2 * 4
        least.append(rows[0] == 3)
        if number % 10 == 0:
            restored.restore(tmp_path)
            assert_identical(whole_state(simulation), whole_state(restored))
    assert np.mean(least) >= 0.5
    files = {path.name for path in tmp_path.iterdir()}
    needed = set()
    for number in (99, 100):
        content = content_of(tmp_path / f"checkpoint-{number}.json")
        needed |= {f"checkpoint-{number}.json", content["server"]["file"]}
        needed |= {segment["file"] for segment in content["clients"]}
    assert files == needed
    # A restored simulation goes on with the segments that it finds, as the one that wrote them.
    shutil.copytree(tmp_path, tmp_path / "copy")
    restored.restore(tmp_path / "copy")
    for one, directory in ((simulation, tmp_path), (restored, tmp_path / "copy")):
        one.run_round()
        one.save(directory)
    first, second = (
        content_of(path / "checkpoint-101.json") for path in (tmp_path, tmp_path / "copy")
    )
    assert first == second


def test_states_that_are_set_and_a_second_directory_are_saved_too(tmp_path):
    simulation, restored = crowd(), crowd()
    simulation.run_round()
    simulation.save(tmp_path / "a")
    states = tf.nest.map_structure(lambda leaf: leaf + 1, simulation.client_states([0, 7]))
    simulation.set_client_states([0, 7], states)
    for directory in (tmp_path / "a", tmp_path / "b"):
        simulation.save(directory)
        restored.restore(directory)
        assert_identical(whole_state(simulation), whole_state(restored))
    simulation.run_round()
    simulation.save(tmp_path / "b")
    simulation.restore(tmp_path / "a")  # Back to round 1.
    simulation.save(tmp_path / "b")
    restored.restore(tmp_path / "b")
    assert_identical(whole_state(simulation), whole_state(restored))


def interrupted(*arguments):
    raise KeyboardInterrupt


def test_a_round_that_is_interrupted_leaves_nothing_behind(tmp_path, monkeypatch):
    """While it is evaluated, or while it is stored, after which the simulation is restored."""
    simulation = crowd()
    simulation.run_round()
    simulation.save(tmp_path)
    before, engine = whole_state(simulation), simulation._engine
    for place, method, in_round in ((engine, "evaluate", False), (engine.states, "commit", True)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(place, method, interrupted)
            simulation.run_round(evaluate=True)
        assert (simulation.round_number, simulation.in_round) == (1, in_round)
        if in_round:
            simulation.restore(tmp_path)
        assert_identical(before, whole_state(simulation))


def damage(path, how):
    """Removes a file, changes one bit of it, or cuts it off after a share of its bytes."""
    content = bytearray(path.read_bytes())
    path.unlink()
    if how == "flipped":
        content[len(content) // 2] ^= 4
    if how != "removed":
        path.write_bytes(content if how == "flipped" else content[: int(len(content) * how)])


def test_a_damaged_checkpoint_is_passed_over(tmp_path, caplog):
    """Each file that only the newest one has is damaged in each way."""
    simulation, restored = crowd(), crowd()
    states = []
    for _ in range(2):
        simulation.run_round()
        simulation.save(tmp_path / "whole")
        states.append(whole_state(simulation))
    names = ("checkpoint-2.json", "server-2.npz", "clients-2.npz")
    for name, how in itertools.product(names, ("removed", "flipped", 0, 0.3, 0.9, 0.99)):
        directory = tmp_path / f"{name}_{how}"
        shutil.copytree(tmp_path / "whole", directory)
        damage(directory / name, how)
        restored.restore(directory)
        assert_identical(states[0], whole_state(restored))
        lines = [*caplog.messages]
        caplog.clear()
        if (name, how) == (names[0], "removed"):  # What is not listed was never there.
            assert lines == []
        else:
            assert len(lines) == 1
            assert "checkpoint-2.json: " in lines[0]
            assert "round 1 is used" in lines[0]
        # It is not used later either, but replaced.
        restored.run_round()
        restored.save(directory)
        restored.restore(directory)
        assert_identical(states[1], whole_state(restored))
        assert caplog.messages == []
    for name in ("server-1.npz", "server-2.npz"):
        damage(tmp_path / "whole" / name, 0.5)
    with pytest.raises(CheckpointError, match=r"all are damaged \(checkpoint-2.json: server-2.npz"):
        restored.restore(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 3}, "seed: expected 3, got 2"),
        ({"name": "fedper"}, "algorithm: expected fedper, got pflego"),
        ({"units": 4}, r"theta/0 float32 \[2, 4\].*, got theta/0 float32 \[2, 3\]"),
        ({"per_round": 4}, "participation: expected clients_per_round 4, got clients_per_round 3"),
        ({"clients": 41}, "num_clients: expected 41, got 40"),
        ({"examples": 6}, "differs in data_crc32: expected"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_another_simulation_is_refused(changed, message, tmp_path):
    simulation = crowd()
    simulation.save(tmp_path)
    other = crowd(**changed)
    before = whole_state(other)
    with pytest.raises(CheckpointError, match=message):
        other.restore(tmp_path)
    assert_identical(before, whole_state(other))
    with pytest.raises(ValueError, match="must not contain checkpoints of another simulation"):
        other.save(tmp_path)


def test_a_disk_that_is_full_leaves_the_earlier_checkpoints(tmp_path, monkeypatch):
    """Each of the writes of a checkpoint fails in turn."""
    simulation, restored = crowd(), crowd()
    simulation.run_round()
    simulation.save(tmp_path)
    before, held = whole_state(simulation), {path.name for path in tmp_path.iterdir()}
    simulation.run_round()
    to_disk = checkpoint.durable.to_disk
    for failing in ("server-2.npz", "clients-2.npz", "checkpoint-2.json"):

        def limited(path, failing=failing):
            if failing in path.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            to_disk(path)

        monkeypatch.setattr(checkpoint.durable, "to_disk", limited)
        with pytest.raises(OSError, match="No space left"):
            simulation.save(tmp_path)
        monkeypatch.undo()
        restored.restore(tmp_path)
        assert_identical(before, whole_state(restored))
        assert {path.name for path in tmp_path.iterdir()} == held
    simulation.save(tmp_path)
    restored.restore(tmp_path)
    assert_identical(whole_state(simulation), whole_state(restored))
