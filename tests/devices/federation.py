"""A small federation: its definition, its clients' files, and requests as a server makes them."""

import dataclasses
import functools

import numpy as np

import tf_pflego as pfl
from tf_pflego.devices import messages
from tf_pflego.devices.client_directory import Journal
from tf_pflego.devices.definition import Definition
from tf_pflego.devices.resident import Resident
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan

NAMES = ("north", "south", "east")
SEED = 4


def site_of(number):
    """Returns the arrays of a client's file: 5, 6 or 7 training examples of two of four classes."""
    rng = np.random.default_rng(number)

    def of(count):
        labels = np.array([number, number + 1])[np.arange(count) % 2]
        return rng.normal(size=(count, 3)).astype(np.float32), labels

    pairs = {"train": of(5 + number), "test": of(3)}
    return {
        f"{split}_{kind}": array
        for split, pair in pairs.items()
        for kind, array in zip(("examples", "labels"), pair, strict=True)
    }


def clients_like(uniform=False, **options):
    """Returns the clients of a simulation with the same examples."""
    sites = [site_of(number) for number in range(3)]
    train, test = (
        [(site[f"{split}_examples"], site[f"{split}_labels"]) for site in sites]
        for split in ("train", "test")
    )
    clients = pfl.from_arrays(train, test, client_names=NAMES, num_classes=4, **options)
    return dataclasses.replace(clients, uniform_weights=uniform)


def config_of(**settings):
    return RunConfig(
        **{"network": "mlp", "clients_per_round": 2, "seed": SEED, "engine": "in_process"}
        | settings
    )


def planned(config, **hyper_parameters):
    """Returns the plan of a run whose clients stand in for those of the federation."""
    return Plan.of(config, clients=clients_like(), **hyper_parameters)


@functools.cache
def two_steps():
    """The definition of a federation whose clients take two steps in a round."""
    return Definition.of(planned(config_of(), local_steps=2))


class Site:
    """A resident client, asked as by a server."""

    def __init__(self, definition, number, directory, network=None):
        self.definition = definition
        self.journal = Journal(directory)
        self.journal.path.mkdir(mode=0o700, exist_ok=True)
        self.data = definition.client(NAMES[number], site_of(number))
        if network is not None:
            self.journal.keep_network(network)
        self.resident = Resident(definition, self.data, self.journal)

    def ask(self, arrays=(), **facts):
        facts = {"definition": self.definition.identity, "all_examples": 18} | facts
        request = messages.packed(facts, dict(arrays))
        reply, arrays = messages.unpacked(self.resident.answer(request)[0])
        assert reply.pop("to") == messages.answer_to(request)
        return reply, arrays
