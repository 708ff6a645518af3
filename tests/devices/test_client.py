"""A resident client computes what a client of a simulation does, bit by bit, and nothing else."""

import numpy as np
import pytest
import tensorflow as tf

from tests.devices.federation import NAMES, SEED, Site, clients_like, config_of, site_of
from tests.methods import each_of
from tf_pflego import engines
from tf_pflego.core import seeds
from tf_pflego.devices import messages
from tf_pflego.devices.client_export import StoredClient
from tf_pflego.devices.definition import Definition
from tf_pflego.engines.tracing import served_leaves_read
from tf_pflego.runs import build
from tf_pflego.runs.plan import Plan

SMALL = {
    "pflego": ({}, {"local_steps": 3}),
    "ditto": (
        {"client_weights": "uniform", "network": "mlp"},
        {"local_epochs": 1, "batch_size": 128},
    ),
    "pflego_shared_head": (
        {"label_space": "global", "class_mask": True, "network": "mlp"},
        {"local_steps": 2},
    ),
}


class Server:
    """A simulation whose rounds are run by residents beside its own engine."""

    def __init__(self, simulation, sites):
        self.simulation, self.sites, self.state = simulation, sites, simulation.server_state
        self.numbers, self.new = [0] * len(sites), 0

    def exchange(self, number, position):
        """Returns what the engine and what the sites give, for the round's participants."""
        one, engine = self.simulation, self.simulation._engine
        exchange = one.algorithm.exchanges[position]
        ids = one.participation.draw(SEED, number, exchange.cohort)
        round_ = one._rounds._round(number, position, exchange.cohort, scale=1.0)
        server = one._rounds.server[position]
        message = exchange.broadcast(self.state, round_)
        drawn = seeds.client_seeds(SEED, "client", ids, number, position)
        cohort = engines.Cohort(ids, drawn, server.client_messages(self.state, ids, round_))
        self.new += 1
        replies = []
        for place, client in enumerate(ids):
            to_one = [np.asarray(leaf)[place] for leaf in tf.nest.flatten(cohort.messages)]
            arrays = messages.numbered("round", round_) | messages.numbered("one", to_one)
            arrays |= messages.numbered("message", tf.nest.flatten(message))
            if not self.numbers[client]:
                arrays |= self.leaves("start", engine.states.init_reads)
            numbers = {"state": self.numbers[client], "new": self.new, "oldest": 0}
            about = {"position": position, "seed": drawn[place].tolist(), "evaluate": True}
            reply = self.sites[client].ask(arrays, ask="exchange", **numbers, **about, secure=None)
            self.numbers[client] = self.new
            replies.append(reply)
        outcome = engine.run_exchange(exchange, message, cohort, self.state, round_, True)
        self.state = server.update(self.state, (outcome.summed, outcome.individual, ids), round_)
        return outcome, replies

    def leaves(self, name, reads):
        pairs = zip(tf.nest.flatten(self.state), reads, strict=True)
        return messages.numbered(name, [leaf for leaf, read in pairs if read])


@pytest.mark.parametrize("method", each_of(SMALL, ("pflego",)))
def test_it_gives_the_bits_of_a_simulation(method, tmp_path):
    settings, hyper_parameters = SMALL[method]
    network = None
    if "network" not in settings:
        network = half_frozen(tmp_path / "body.keras")
        settings = settings | {"network": str(network)}
    config = config_of(algorithm=method, **settings)
    of_clients = {key: settings[key] for key in settings.keys() & {"label_space", "class_mask"}}
    clients = clients_like(uniform="client_weights" in settings, **of_clients)
    definition = Definition.of(Plan.of(config, clients=clients, **hyper_parameters))
    definition.save(tmp_path / "definition.json")
    definition = Definition.load(tmp_path / "definition.json")
    given = "of a site's own" if network is None else ""
    with pytest.raises(ValueError, match="`network` must be"):
        definition.algorithm(network=given)
    sites = [Site(definition, k, tmp_path / name, network) for k, name in enumerate(NAMES)]
    for site in sites:
        assert (site.resident.algorithm.model.frozen is None) == (network is None)
    with build.build_simulation(config, clients, **hyper_parameters) as simulation:
        server = Server(simulation, sites)
        for number in (1, 2):
            for position in range(len(simulation.algorithm.exchanges)):
                outcome, replies = server.exchange(number, position)
                assert [facts for facts, _ in replies] == [{"finite": True}] * len(replies)
                for place, leaf in enumerate(tf.nest.flatten(outcome.summed)):
                    total = np.zeros(leaf.shape, leaf.dtype.as_numpy_dtype)
                    for _, arrays in replies:
                        total = total + arrays[f"summed/{place}"]
                    np.testing.assert_array_equal(total, leaf)
                expected = flat({"sums": outcome.sums})
                for name, rows in expected.items():
                    got = [arrays[name] for _, arrays in replies]
                    np.testing.assert_array_equal(np.stack(got), rows)
        simulation._engine.commit()
        reads = served_leaves_read(simulation.algorithm, server.state)
        ids = np.arange(len(sites))
        drawn = seeds.client_seeds(SEED, "evaluation", ids, 2)
        expected = flat(simulation._engine.evaluate(ids, drawn, True, server.state))
        for client, site in enumerate(sites):
            about = {"state": server.numbers[client], "seed": drawn[client].tolist(), "train": True}
            sent = server.leaves("served", reads)
            if not server.numbers[client]:
                sent |= server.leaves("start", simulation._engine.states.init_reads)
            facts, arrays = site.ask(sent, ask="evaluate", **about, round=2)
            assert facts == {}
            for name, rows in expected.items():
                np.testing.assert_array_equal(arrays[name], rows[client])
        # So it is alone, from the directory of one that has taken part.
        client = next(client for client, number in enumerate(server.numbers) if number)
        sites[client].journal.begin(definition, NAMES[client], site_of(client))
        with StoredClient(sites[client].journal.path).simulation() as alone:
            ids = np.zeros(1, np.int64)
            told = ids, alone._evaluation_seeds(ids, 2), True, alone.server_state
            for name, rows in flat(alone._engine.evaluate(*told)).items():
                np.testing.assert_array_equal(rows, expected[name][[client]])
            assert alone.round_number == 2


def half_frozen(path):
    """Writes a network whose first layer is frozen, and returns its path."""
    frozen, trained = (
        tf.keras.layers.Dense(units, "tanh", kernel_initializer="ones") for units in (5, 4)
    )
    frozen.trainable = False
    tf.keras.Sequential([tf.keras.Input([3]), frozen, trained]).save(path)
    return path


def flat(counts):
    return {
        f"{name}/{split}/{statistic}": rows
        for name, splits in counts.items()
        for split, named in splits.items()
        for statistic, rows in named.items()
    }
