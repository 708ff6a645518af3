"""What somebody writes who compares methods on arrays and a Keras body of their own."""

import pytest

import tf_pflego as pfl

SCRIPT = """
import numpy as np, tensorflow as tf, tf_pflego as pfl

rng = np.random.default_rng(0)
table = [(rng.normal(0, 1, (40, 6)).astype("float32"), np.arange(40) % 2) for _ in range(6)]
for number, (examples, labels) in enumerate(table):
    examples[labels == 1, number] += 3
train, test = [(x[:30], y[:30]) for x, y in table], [(x[30:], y[30:]) for x, y in table]
clients = pfl.from_arrays(train, test)
body = tf.keras.Sequential([tf.keras.Input([6]), tf.keras.layers.Dense(8, "relu")])
model = pfl.SplitModel(body, num_outputs=2)
settings = {"num_rounds": 4, "clients_per_round": 3, "client_learning_rate": [0.01, 0.1]}
experiment = pfl.Experiment(pfl.grid(algorithm=["pflego", "fedavg"]), settings, seeds=(0, 1, 2))
compared = pfl.sweep(experiment, "runs/mine", clients=clients, model=model)
print(compared.table(reference="fedavg"))
"""


@pytest.mark.thorough
def test_a_sweep_over_own_arrays_and_an_own_body_has_at_most_fifteen_lines(
    tmp_path, monkeypatch, capsys
):
    lines = [line for line in SCRIPT.splitlines() if line]
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 100
    monkeypatch.chdir(tmp_path)
    exec(compile(SCRIPT, "script", "exec"), {})
    shown = capsys.readouterr().out
    assert "compared with fedavg" in shown
    for method in ("pflego", "fedavg"):
        (line,) = [line for line in shown.splitlines() if line.startswith(f"| {method} ")]
        assert "2 (8 rounds)" in line
    outcome = pfl.load_sweep("runs/mine")
    assert outcome.runs["dataset"] == 6 * ["custom"]
    assert set(outcome.best()) == {"pflego", "fedavg"}
