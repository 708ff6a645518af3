"""Who takes part in a private run follows from its secret and from what the accounting knows."""

import dataclasses

import numpy as np
import pytest

from tests.methods import each_of
from tf_pflego.aggregation import accounting, private
from tf_pflego.core import seeds
from tf_pflego.runs import build
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.reader import places

# Settings of which the accounting knows by the way in which participants are drawn.
KNOWN = {
    "num_clients": {"num_clients": 24},
    "clients_per_round": {"clients_per_round": 7},
    "participation": {"participation": "cyclic"},
    "clients_per_round_range": {"participation": "range", "clients_per_round_range": "1,3"},
    "client_dropout": {"client_dropout": 0.3},
    "num_new_clients": {"num_new_clients": 5},
    "partition": {"partition": "dirichlet", "num_clients": 6},  # It deals to other clients.
}
# Other values of what is text, or goes with few others.
CHOSEN = {"algorithm": "pflego", "omniglot_splits": "train", "network": "mlp", "personal": "bias"}
CHOSEN |= {"compression": "quantized:8", "robust_sum": "median", "attack": "noise"}
CHOSEN |= {
    "statistics": "accuracy",
    "clip_norm": 0.3,
    "dp_mechanism": "local",
    "num_eval_clients": 5,
}
# Of tables, whose clients are counted before participants are drawn, and of real federations, which
# `runs.device_settings` refuses where the accounting does not know of them.
NEITHER = {
    *("dataset", "client_column", "label_column", "feature_columns", "category_columns", "split"),
    *(
        "time_column",
        "text_columns",
        "text_words",
        "task",
        "missing",
        "min_rows",
        "on_small_client",
    ),
    *("separator", "decimal", "unpacked_mb", "engine", "client_names", "num_spare_clients"),
    *("start_from", "omniglot_splits", "standardize_labels", "huber_delta", "num_shards"),
}
SECRET = np.array([3, 4])
PRIVATE = {"engine": "in_process", "num_clients": 20, "clients_per_round": 5, "num_rounds": 8}
PRIVATE |= {"participation": "binomial", "dp_noise_multiplier": 1.0, "clip_norm": 0.2}
PRIVATE |= {"algorithm": "fedavg"}  # It has no states of clients, which take half of the time.


def drawn(monkeypatch, digits_dir, **changes):
    """The run's accountant, and who takes part in its first rounds; None if it is refused."""
    settings = {"dataset": "digits", "data_dir": digits_dir, **PRIVATE}
    monkeypatch.setattr(seeds, "secret", lambda: SECRET)
    try:
        simulation = build.build_simulation(RunConfig(**settings | changes))
    except ValueError:
        return None
    with simulation:
        algorithm, state = simulation.algorithm, simulation.server_state
        seed = algorithm.release.participation_seed(state)
        numbers = 8, None, 1.0, 1e-5, accounting.MECHANISMS[0], 24
        accountant = private.accountant_of(algorithm.release.participation, 1, *numbers)
        return accountant, [simulation.participation.draw(seed, n).tolist() for n in range(1, 200)]


@pytest.mark.parametrize("name", each_of(KNOWN, ("client_dropout", "clients_per_round_range")))
def test_the_accounting_knows_how_participants_are_drawn(name, monkeypatch, digits_dir):
    outcome = drawn(monkeypatch, digits_dir, **KNOWN[name])
    assert (outcome is None) == (name == "clients_per_round_range")
    if outcome is not None:
        accountant, rounds = outcome
        participation = accountant.participation
        share = participation.clients_per_round / participation.num_clients
        took_part = np.mean([len(ids) for ids in rounds]) / participation.num_clients
        reported = 1 - participation.client_dropout
        assert took_part == pytest.approx(share * reported, abs=0.04)
        assert max(map(max, filter(None, rounds))) == participation.num_clients - 1


def another(field):
    """A value of a setting that is neither its default nor the one above."""
    if field.name in CHOSEN:
        return CHOSEN[field.name]
    if field.metadata["choices"]:
        return next(one for one in field.metadata["choices"] if one != field.default)
    if isinstance(field.default, bool):
        return not field.default
    return field.default + 1 if isinstance(field.default, int) else field.default / 2 or 0.3


@pytest.mark.thorough
def test_nothing_else_changes_who_takes_part(monkeypatch, digits_dir):
    _, expected = drawn(monkeypatch, digits_dir)
    refused = set()
    looked_at = {*places(), *KNOWN, *NEITHER}
    fields = {field.name: field for field in dataclasses.fields(RunConfig)}
    for name, field in fields.items():
        if name in looked_at:
            continue
        beside = {}
        for needed in field.metadata["read_with"]:  # Else it would be refused as not read.
            if needed.keys().isdisjoint(PRIVATE):
                other, wanted = next(iter(needed.items()))
                beside[other] = wanted[0] if wanted else another(fields[other])
        outcome = drawn(monkeypatch, digits_dir, **beside | {name: another(field)})
        if outcome is None:
            refused.add(name)
        else:
            known = beside.keys() & KNOWN.keys()
            alike = drawn(monkeypatch, digits_dir, **beside)[1] if known else expected
            assert outcome[1] == alike, name
    # These go with other settings, or not with privacy.
    assert refused == {"dp_epsilon", "secure_sum_bits", "robust_sum"}
