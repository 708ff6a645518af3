"""Runs PFLlib's own server and clients on what compare_with_pfllib.py gives; imports torch.

  python tools/run_pfllib.py PATH_OF_A_CLONE METHOD GIVEN.npz BRIDGE...

Puts all weights into the file: the server's by round, and then what each client keeps.
"""

import importlib
import operator
import pathlib
import random
import sys
import types

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS, EPOCHS, BATCH, MIXING_PASSES = 3, 2, 5, 3
# The server's class; where it has its weights, where a client has these if they are more than a
# network, and where a client has what it keeps.
TWINS = {
    "scaffold": ("SCAFFOLD", "global_model", "", "client_c"),
    "moon": ("MOON", "global_model", "", "old_model"),
    "fedala": ("FedALA", "global_model", "", "model ALA.weights"),
    "fedproto": ("FedProto", "global_protos", "", "model protos"),
    "gpfl": ("GPFL", "global_model GCE CoV", "model.base GCE CoV", "model.head"),
    "fedcp": (
        "FedCP",
        "global_modules cs head",
        "model.model.base model.gate.cs model.head_g",
        "model.model.head",
    ),
    "feddbe": ("FedDBE", "global_model", "", "client_mean"),
    "fedas": ("FedAS", "global_model.base", "", "model"),
    "fedbabu": ("FedBABU", "global_model", "", ""),
    "fedrod": ("FedROD", "global_model", "", "head"),
}


class Args(types.SimpleNamespace):
    """Their arguments; those that are not given are 0."""

    def __getattr__(self, name):
        return 0


class Batches:
    """A stand-in for a DataLoader, of which each pass takes the next order of the examples."""

    def __init__(self, examples, orders, size):
        self.examples, self.orders, self.size = examples, orders, size

    def __len__(self):
        return len(self.examples) // self.size

    def __iter__(self):
        for rows in self.orders.pop(0).split(self.size)[: len(self)]:
            yield tuple(map(torch.stack, zip(*(self.examples[row] for row in rows), strict=True)))


def tensors(owner, names):
    """Returns the tensors of what has these names, which may be nothing yet."""
    found = []
    for part in (operator.attrgetter(name)(owner) for name in names.split()):
        if isinstance(part, torch.nn.Module):
            found += part.parameters()
        elif isinstance(part, dict):
            found += [part[key] for key in sorted(part)]
        elif part is not None:
            found += part if isinstance(part, list) else [part]
    return found


def module(name):
    """Returns a module of theirs."""
    return importlib.import_module(name)


def batches(server):
    """Gives batches of the run's size to whoever asks for another."""
    for client in server.clients:
        load = client.load_train_data
        client.load_train_data = lambda batch_size=None, load=load: load()


def passes(server):
    """Ends the first learning to mix after so many passes."""
    for client in server.clients:
        client.ALA.num_pre_loss, client.ALA.threshold = MIXING_PASSES - 1, float("inf")


def participants(server):
    """Sends to the participants alone."""

    def send_models():
        for client in server.selected_clients:
            data = Batches(client.ALA.train_data, client.mixing, BATCH)
            module("utils.ALA").DataLoader = lambda *args, data=data, **options: data
            client.local_initialization(server.global_model)

    server.send_models = send_models


def last(server):
    """Takes prototypes after training, by a function of theirs that is not called."""
    for client in server.clients:

        def train(client=client, train=client.train):
            train()
            client.collect_protos()

        client.train = train


def conditions(server):
    """Takes conditions from the embeddings that are sent, by receiving them twice."""
    for client in server.clients:

        def set_GCE(sent, receive=client.set_GCE):
            receive(sent)
            receive(sent)

        client.set_GCE = set_GCE
        client.set_GCE(client.GCE)


def norms(server):
    """Takes the mean of the norms of a batch's rows for its norm."""
    norm = {"norm": lambda rows, order: rows.norm(order, dim=1).mean()}
    module("flcore.clients.clientgpfl").torch = types.SimpleNamespace(**vars(torch) | norm)


def noise(server):
    """Adds no noise in the softmax."""
    functions = {"gumbel_softmax": lambda x, dim, tau, hard: torch.softmax(x / tau, dim)}
    module("flcore.servers.servercp").F = types.SimpleNamespace(**functions)


def newest(server):
    """Sends the head and the policy to all clients, and at the start."""
    send = server.global_cs

    def global_cs():
        send()
        for client in server.clients:
            client.set_head_g(server.head)
            client.set_cs(server.cs)

    server.global_cs = global_cs
    for client in server.clients:
        client.set_head_g(client.model.head_g)


def half(server):
    """Doubles the weight that is halved."""
    for client in server.clients:
        client.klw *= 2


def main(pfllib, name, path, *bridges):
    """Runs three rounds of theirs."""
    random.seed(0)  # It says in which order they add uploads up.
    sys.path.insert(0, str(pathlib.Path(pfllib, "system")))
    given = {key: torch.tensor(array) for key, array in np.load(path).items()}
    examples = [list(zip(given[f"x_{i}"], given[f"y_{i}"], strict=True)) for i in range(4)]
    orders = [list(given[f"orders_0_{i}"]) for i in range(4)]
    kind, shared, sent, kept = TWINS[name]
    module("utils.data_utils").read_client_data = lambda _, client, **options: examples[client]
    module("flcore.clients.clientbase").Client.load_train_data = lambda client, batch_size=None: (
        Batches(examples[client.id], orders[client.id], batch_size or BATCH)
    )
    layers = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU()), torch.nn.Linear(6, 3)
    model = module("flcore.trainmodel.models").BaseHeadSplit(*layers)
    vector_to_parameters(given["start"], model.parameters())
    args = Args(model=model, device="cpu", num_clients=4, num_classes=3, batch_size=BATCH)
    vars(args).update(global_rounds=ROUNDS - 1, eval_gap=1, join_ratio=len(given["ids_1"]) / 4)
    vars(args).update(local_epochs=EPOCHS, local_learning_rate=0.1, server_learning_rate=1.0)
    vars(args).update(layer_idx=2, eta=1.0, rand_percent=100, tau=0.5, mu=0.2, lamda=1.0)
    vars(args).update(kl_weight=5.0, momentum=0.3, time_threthold=float("inf"))
    of_method = module(f"flcore.servers.server{kind.lower().removeprefix('fed')}")
    server, weights = getattr(of_method, kind)(args, 0), []
    for client in server.clients:
        vector_to_parameters(given["start_of_all"].clone(), tensors(client, sent))
        vector_to_parameters(given[f"start_{client.id}"].clone(), tensors(client, kept))
    for bridge in bridges:
        globals()[bridge](server)

    def select_clients():
        if server.selected_clients:  # A round has ended.
            weights.append(parameters_to_vector(tensors(server, shared)))
        number = len(weights) + 1
        for client in server.clients:
            orders[client.id][:] = given[f"orders_{number}_{client.id}"]
            client.mixing = list(given[f"mixing_{number}_{client.id}"])
        return [server.clients[i] for i in given[f"ids_{number}"]]

    for ending in ("evaluate", "save_results", "save_global_model", "avg_generalization_metrics"):
        setattr(server, ending, lambda: None)
    server.rs_test_acc, server.selected_clients = [0], []
    server.select_clients = select_clients
    server.train()
    weights.append(parameters_to_vector(tensors(server, shared)))
    weights += [parameters_to_vector([*tensors(c, kept), torch.zeros(0)]) for c in server.clients]
    np.savez(path, *(vector.detach().numpy() for vector in weights))


if __name__ == "__main__":
    main(*sys.argv[1:])
