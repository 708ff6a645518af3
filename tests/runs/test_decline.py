"""What is said of a run that got worse after its best rounds, and of which runs it is not."""

import logging

import numpy as np
import pytest

from tests.reports.conftest import large_run, page_of, rewrite, text_of
from tf_pflego.runs import decline
from tf_pflego.runs.progress import say_decline

ROUNDS = np.arange(1, 201)
FALLING = 320 + 580 * np.exp(-ROUNDS / 12)
RISING = 13 * np.clip((ROUNDS - 60) / 140, 0, 1)
NOISE = np.random.default_rng(0).normal(size=200)
SLOW_NOISE = np.convolve(np.random.default_rng(1).normal(size=219), np.full(20, 20**-0.5), "valid")


def said_of(values, split="test", statistic="root_mean_squared_error", rounds=ROUNDS):
    return decline.remark({"round": rounds, f"{split}_{statistic}/client_mean": values})


def test_an_error_that_grows_again_is_told_with_its_best_round():
    said = said_of(FALLING + RISING + NOISE)
    assert said.startswith("the test RMSE got worse after round ")
    best = int(said.split(" after round ")[1].split(":")[0])
    assert 50 < best < 110 and "EarlyStopping" in said and "validation_fraction" in said
    # Also if few rounds are evaluated, and the others have no value.
    few = np.where((ROUNDS % 10 == 0) | (ROUNDS > 190), FALLING + RISING, np.nan)
    assert said_of(few)
    # Validation examples come first, which here do not say so.
    both = {"round": ROUNDS, "test_accuracy/client_mean": -RISING}
    both["validation_accuracy/client_mean"] = np.full(200, 0.9)
    assert not decline.remark(both)


@pytest.mark.parametrize(
    "values",
    [
        FALLING,
        FALLING + 10 * NOISE,
        FALLING + 10 * SLOW_NOISE,
        FALLING + RISING + 20 * NOISE,
        FALLING + RISING / 10,
    ],
)
def test_noise_and_what_is_small_are_not_told(values):
    assert not said_of(values)


def test_a_run_that_is_short_or_without_a_metric_is_not_judged():
    assert not said_of([0.9] * 3 + [0.1] * 9, statistic="accuracy", rounds=ROUNDS[:12])
    assert not decline.remark({"round": ROUNDS, "train_loss": ROUNDS})


def test_the_log_and_a_page_say_it(tmp_path, without_pictures, caplog):
    path, errors = large_run(tmp_path / "run", 3, num_rounds=30), np.r_[0.9, [0.95] * 9, [0.5] * 20]

    def change(records):
        for record, value in zip(records, errors, strict=True):
            record["test_accuracy/client_mean"] = value

    rewrite(path, change)
    said = "the test accuracy got worse after round"
    assert f"fedavg: {said} " in text_of(page_of(path, tmp_path / "r.html"))
    with caplog.at_level(logging.INFO):
        say_decline(
            [{"round": k + 1, "test_accuracy/client_mean": v} for k, v in enumerate(errors)]
        )
    assert said in caplog.text
