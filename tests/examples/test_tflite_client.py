"""The phone of examples/tflite_client.py answers as a client of the package would."""

import contextlib
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tf_pflego.core.algorithm import Round
from tf_pflego.engines.engine import Cohort
from tf_pflego.engines.in_process import InProcessEngine
from tf_pflego.system import frames, wire

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "tflite_client.py"
TOLERANCE = 1e-6  # float32: TFLite adds in another order.
PHONE, NAMES = 1, ("clinic", "phone", "shop")
CLASSES = ((0, 1), (1, 3), (0, 2, 3))
CLASS_NAMES = ("ash", "birch", "cedar", "elm")
DEFINITION = {
    "version": "1.0",
    "clients": NAMES,
    "class_names": CLASS_NAMES,
    "settings": {"client_weights": "examples"},
}
IDENTITY = hashlib.sha256(
    json.dumps(DEFINITION, sort_keys=True, separators=(",", ":")).encode()
).hexdigest()


def split(count, seed):
    """Returns the examples and labels of each client, `count` of each class."""
    rng = np.random.default_rng(seed)
    labels = [np.tile(classes, count) for classes in CLASSES]
    return [(rng.normal(size=(len(own), 6)).astype(np.float32), own) for own in labels]


class Federation:
    """The run's own engine, and the phone, which is asked the same."""

    def __init__(self, directory):
        train, test = split(5, 0), split(3, 1)
        clients = pfl.from_arrays(train, test, class_names=CLASS_NAMES, client_names=NAMES)
        model = pfl.SplitModel(pfl.mlp((6,), seed=0, units=60), 3)
        self.algorithm = pfl.build_algorithm("pflego", model, client_learning_rate="auto")
        with pfl.Simulation(self.algorithm, clients, pfl.Participation(3, 2), "in_process") as run:
            pfl.export_clients(
                run, ["phone"], directory / "models", "tflite", learning=False, federated=True
            )
            self.server, seed = run.server_state, run.seed
        self.engine = InProcessEngine(self.algorithm, clients, self.server, seed)
        self.all_examples = len(clients.train.labels)
        pairs = zip(("train", "test"), (train[PHONE], test[PHONE]), strict=True)
        arrays = {}
        for name, (examples, labels) in pairs:
            arrays |= {f"{name}_examples": examples, f"{name}_labels": labels}
        np.savez(directory / "site.npz", **arrays)
        (directory / "definition.json").write_text(json.dumps(DEFINITION, indent=1))
        self.directory = directory

    @contextlib.contextmanager
    def running(self, state_dir):
        """Runs the phone's program, and gives what asks it."""
        options = {
            "model": self.directory / "models" / "client_phone.tflite",
            "data": self.directory / "site.npz",
            "definition": self.directory / "definition.json",
            "name": "phone",
            "state_dir": state_dir,
        }
        command = [sys.executable, PROGRAM, *(f"--{key}={one}" for key, one in options.items())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            try:
                assert program.stdout.readline() == f"listens at {state_dir / 'socket'}\n"

                def ask(facts, arrays=(), definition=IDENTITY):
                    about = {"definition": definition, "known": [], **facts}
                    request = wire.packed(about, dict(arrays))
                    with frames.connected(state_dir / "socket", 60) as link:
                        reply, arrays = wire.unpacked(frames.ask(link, request))
                    assert reply.pop("to") == hashlib.sha256(request).hexdigest()[:32]
                    return reply, arrays

                yield ask
            finally:
                program.terminate()

    def theta(self, number):
        """Returns the body of a round, which moves from round to round."""
        rng = np.random.default_rng(number)
        return [
            (leaf + rng.normal(0, 0.1, leaf.shape)).astype(np.float32)
            for leaf in map(np.asarray, self.server.theta)
        ]

    def exchange(self, number, state, oldest=0, **changes):
        """Returns the facts and arrays of a request."""
        facts = {"ask": "exchange", "position": 0, "state": state, "new": number, "seed": [1, 2]}
        facts |= {"oldest": oldest, "evaluate": True, "secure": None}
        arrays = wire.numbered("round", self.round(number)) | wire.numbered(
            "message", self.theta(number)
        )
        return {**facts, "all_examples": self.all_examples, **changes}, arrays

    @staticmethod
    def round(number):
        fields = np.int32(number), np.zeros(2, np.int32), np.float32(1.5), np.int32(3)
        return Round(*fields, np.float32(2))

    def in_process(self, number):
        """Returns what the phone's upload would be in this process, whose state then stays."""
        (exchange,) = self.algorithm.exchanges
        cohort = Cohort(np.array([PHONE]), np.zeros((1, 2), np.int32), ())
        message, round_ = self.theta(number), self.round(number)
        result = self.engine.run_exchange(exchange, message, cohort, self.server, round_, True)
        self.engine.commit()
        return list(map(np.asarray, result.summed.summed)), result.sums["test"]["accuracy"][0]


def assert_upload(reply, expected):
    facts, arrays = reply
    leaves, accuracy = expected
    assert facts == {"finite": True}
    for place, leaf in enumerate(leaves):
        np.testing.assert_allclose(arrays[f"summed/{place}"], leaf, rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(arrays["sums/test/accuracy"], accuracy)
    assert arrays.keys() == {"summed/0", "summed/1", "sums/test/accuracy"}


def assert_refusals(federation, ask, heads):
    """Asks what the phone cannot answer, which changes nothing."""

    def refusal(facts, arrays, **others):
        reply, nothing = ask(facts, arrays, **others)
        assert not nothing
        return reply["error"]

    facts, arrays = federation.exchange(1, 0)
    assert "told to expect" in refusal(facts, arrays, definition="0" * 64)
    assert "without secure sums" in refusal({**facts, "secure": {"bits": 20}}, arrays)
    assert "without secure sums" in refusal({**facts, "ask": "export"}, arrays)
    turned = {"message/0": np.zeros((60, 6), np.float32)}
    assert "finite float32 of the shape [6, 60]" in refusal(facts, arrays | turned)
    no_number = {"message/1": np.full(60, np.nan, np.float32)}
    assert "finite float32 of the shape [60]" in refusal(facts, arrays | no_number)
    assert "KeyError" in refusal(facts, {})
    assert "FileNotFoundError" in refusal({**facts, "state": 7}, arrays)
    known = {"known": [["message/0", "0" * 32]]}
    assert ask({**facts, **known}, arrays) == ({"missing": ["0" * 32]}, {})
    no_scale = {"round/2": np.array(np.nan, np.float32)}
    assert ask(facts, arrays | no_scale)[0] == {"finite": False}
    with frames.connected(heads / "socket", 60) as link:
        for _ in range(2):
            assert "error" in wire.unpacked(frames.ask(link, b"no message"))[0]
    assert not list(heads.glob("*.npy"))
    assert (heads / "socket").stat().st_mode & 0o077 == 0


@pytest.mark.thorough
def test_it_takes_part_as_in_process(tmp_path):
    """Also after refusals, a round that was taken back, and a new start of the program."""
    federation, heads = Federation(tmp_path), tmp_path / "phone"
    with federation.running(heads) as ask:
        assert_refusals(federation, ask, heads)
        about = {"client": "phone", "version": "1.0", "examples": 10}
        assert ask({"ask": "introduce"}) == (about, {})
        first = ask(*federation.exchange(1, 0))
        assert_upload(first, federation.in_process(1))
        np.testing.assert_equal(ask(*federation.exchange(1, 0)), first)
        ask(*federation.exchange(2, 1))  # It is taken back.
        assert_upload(ask(*federation.exchange(3, 1)), federation.in_process(3))
        assert sorted(path.name for path in heads.glob("*.npy")) == ["head_1.npy", "head_3.npy"]
    with federation.running(heads) as ask:
        assert_upload(ask(*federation.exchange(4, 3, oldest=3)), federation.in_process(4))
        assert sorted(path.name for path in heads.glob("*.npy")) == ["head_3.npy", "head_4.npy"]
        facts = {"ask": "evaluate", "state": 4, "train": True, "seed": [0, 0]}
        theta = federation.theta(5)
        facts["all_examples"] = federation.all_examples
        _, arrays = ask(facts, wire.numbered("served", theta))
        server = federation.server._replace(theta=list(map(tf.constant, theta)))
        seeds = np.zeros((1, 2), np.int32)
        expected = federation.engine.evaluate(np.array([PHONE]), seeds, True, server)
        for name, of_model in expected.items():
            for part, counted in of_model.items():
                for statistic, sums in counted.items():
                    actual = arrays.pop(f"{name}/{part}/{statistic}")
                    np.testing.assert_allclose(actual, sums[0], rtol=1e-6)
        assert not arrays
