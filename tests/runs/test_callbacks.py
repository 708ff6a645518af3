"""Callbacks of a run: early stopping, a user's own, and those that fail."""

import json

import numpy as np
import pytest

import tf_pflego as pfl
from tests.runs.resumed import newest_round, outcome, records_of
from tf_pflego.simulation.checkpoint import Checkpoints

pytestmark = pytest.mark.usefixtures("traced_once")
ROUNDS = 12
RATES = {"local_steps": 3, "client_learning_rate": 0.1}
METRIC = "validation_accuracy/client_mean"


def config_of(digits_dir, output, **changed):
    settings = {
        "num_clients": 6,
        "clients_per_round": 2,
        "num_rounds": ROUNDS,
        "validation_fraction": 0.3,
        "eval_every": 2,
        "checkpoint_every": 5,
        "engine": "in_process",
        "data_dir": digits_dir,
        "output_dir": output,
    }
    return pfl.RunConfig(**settings | changed)


class Listens(pfl.Callback):
    """Remembers its calls, and does something after a round."""

    def __init__(self, number=0, act=lambda: None):
        self.calls, self._number, self._act = [], number, act

    def on_run_begin(self, simulation, records):
        self.calls.append(("begin", simulation.round_number, len(records)))

    def on_round_end(self, simulation, record):
        self.calls.append(("round", simulation.round_number, record["round"]))
        if record["round"] == self._number:
            return self._act()

    def on_run_end(self, simulation, summary):
        self.calls.append(("end", simulation.round_number, summary["round"]))


def fail():
    raise ZeroDivisionError("the user's own")


@pytest.fixture(scope="module")
def undisturbed(digits_dir, tmp_path_factory):
    """The directory of a run that has all its rounds; a callback sees it from begin to end."""
    output = tmp_path_factory.mktemp("callbacks") / "run"
    listener, numbers = Listens(), []
    config = config_of(digits_dir, output)
    pfl.run(config, lambda r: numbers.append(r["round"]), callbacks=[listener], **RATES)
    assert numbers == list(range(1, ROUNDS + 1))
    rounds = [("round", number, number) for number in numbers]
    assert listener.calls == [("begin", 0, 0), *rounds, ("end", ROUNDS, ROUNDS)]
    return output


def expected_stop(records, metric, patience, min_delta):
    """The round by the definition: of all rounds with the metric, the last of so many no better."""
    curve = [(record["round"], record[metric]) for record in records if metric in record]
    for end in range(patience + 1, len(curve) + 1):
        best, since = -np.inf, 0
        for _, value in curve[:end]:
            best, since = (value, 0) if value > best + min_delta else (best, since + 1)
        if since == patience:
            return curve[end - 1][0]
    raise AssertionError("It never stops.")


def test_early_stopping_ends_a_whole_run_at_the_right_round(
    undisturbed, digits_dir, tmp_path, caplog
):
    caplog.set_level("INFO", "tf_pflego")
    curve = records_of(undisturbed)
    last = expected_stop(curve, METRIC, 2, 0.05)
    assert last < ROUNDS
    output = tmp_path / "run"
    config = config_of(digits_dir, output)
    stopping = pfl.EarlyStopping(METRIC, 2, 0.05)
    summary = pfl.run(config, callbacks=[stopping], **RATES)
    assert f"the run ends after round {last}: {METRIC} has not" in caplog.text
    assert (
        summary["round"] == last == len(records_of(output)) == newest_round(output / "checkpoints")
    )
    best = curve[stopping.best_round - 1]
    assert stopping.best == best[METRIC]
    # It is as whole as any: with the loss of the last round, too, which was not evaluated with it.
    whole = json.loads((undisturbed / "summary.json").read_text())
    assert whole.keys() - summary.keys() <= {
        name for name in whole if name.startswith(("participant", "train_loss/"))
    }
    assert {path.name for path in output.iterdir()} == {path.name for path in undisturbed.iterdir()}
    # Nothing is left to do for who resumes it, with the same callbacks or without.
    before = outcome(output)
    again = pfl.run(config_of(digits_dir, output, resume=True), **RATES)
    assert again["round"] == last
    assert f"is finished, with all {last} rounds. Nothing is done" in caplog.text
    assert outcome(output) == before
    with pfl.load_run(output, data_dir=digits_dir) as stored:
        assert stored.round_number == last


@pytest.mark.thorough
def test_a_run_goes_on_beyond_its_early_end_if_it_is_given_more_rounds(
    undisturbed, digits_dir, tmp_path
):
    output = tmp_path / "run"
    config = config_of(digits_dir, output, num_rounds=100)
    stop = Listens(3, lambda: True)
    assert pfl.run(config, callbacks=[stop], **RATES)["round"] == 3
    assert stop.calls[-1] == ("end", 3, 3)
    # Round 3 was not evaluated: the summary has what the files of its end have.
    summary = json.loads((output / "summary.json").read_text())
    assert "test_accuracy/client_mean" not in records_of(output)[-1]
    names = {"test_accuracy/client_mean", METRIC}
    assert {"train_loss", *names, *(f"{name}/last10" for name in names)} <= summary.keys()
    listener = Listens()
    longer = config_of(digits_dir, output, resume=True)
    pfl.run(longer, callbacks=[listener], **RATES)
    assert listener.calls[:2] == [("begin", 3, 3), ("round", 4, 4)]
    assert outcome(output)["server"] == outcome(undisturbed)["server"]


def test_early_stopping_goes_on_where_an_interrupted_run_was(undisturbed, digits_dir, tmp_path):
    """It is told the rounds before, so that it stops where it would have."""
    last = expected_stop(records_of(undisturbed), METRIC, 2, 0.05)
    output = tmp_path / "run"

    def interrupt():
        raise KeyboardInterrupt

    stopping = pfl.EarlyStopping(METRIC, 2, 0.05)
    with pytest.raises(KeyboardInterrupt):
        pfl.run(
            config_of(digits_dir, output), callbacks=[stopping, Listens(last, interrupt)], **RATES
        )
    assert not (output / "summary.json").exists()
    # The metrics of the round that ends it are there, and no further round is run.
    config = config_of(digits_dir, output, resume=True)
    summary = pfl.run(config, callbacks=[stopping], **RATES)
    assert summary["round"] == last


def test_a_callback_that_raises_leaves_a_checkpoint_from_which_the_run_goes_on(
    undisturbed, digits_dir, tmp_path
):
    output = tmp_path / "run"
    with pytest.raises(ZeroDivisionError, match="the user's own") as raised:
        pfl.run(config_of(digits_dir, output), callbacks=[Listens(3, fail)], **RATES)
    assert raised.traceback[-1].name == "fail"
    assert Checkpoints(output / "checkpoints").newest()["round"] == 3
    pfl.run(config_of(digits_dir, output, resume=True), **RATES)
    assert outcome(output) == outcome(undisturbed)


@pytest.mark.parametrize(
    ("callbacks", "error", "message"),
    [
        (3, TypeError, "`callbacks` must be a list of `Callback`; got 3. Put"),
        ([print], TypeError, "`callbacks` must be of the class Callback; got builtin_function"),
        ([pfl.EarlyStopping()], ValueError, "`metric` must be one that the run has; got "
         "validation_accuracy/client_mean, and there"),
        ([pfl.EarlyStopping("accuracy")], ValueError, "`metric` must be one that evaluated rounds "
         "have; got 'accuracy'. They have test_acc"),
    ],
)  # fmt: skip
def test_what_is_no_callback_or_no_metric_is_refused(
    callbacks, error, message, tiny_clients, tiny_model
):
    config = pfl.RunConfig(clients_per_round=2, num_rounds=2, engine="in_process")
    with pytest.raises(error, match=message):
        pfl.run(config, clients=tiny_clients, model=tiny_model, callbacks=callbacks, local_steps=1)


@pytest.mark.parametrize(
    ("metric", "mode"), [("train_loss", "min"), ("test_root_mean_squared_error/client_mean", None)]
)
def test_a_smaller_loss_is_better_and_a_value_that_is_not_finite_is_not(metric, mode):
    stopping = pfl.EarlyStopping(metric, patience=2, mode=mode)
    losses = [0.9, None, 0.5, float("nan"), float("inf")]
    records = [{"round": n, metric: loss} for n, loss in enumerate(losses, 1)]
    assert not stopping.on_run_begin(None, records[:4])
    assert stopping.on_round_end(None, records[4])
    assert (stopping.best, stopping.best_round) == (0.5, 3)
