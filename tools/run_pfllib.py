"""Runs PFLlib's own server and clients on what compare_with_pfllib.py gives; imports torch.

  python tools/run_pfllib.py PATH_OF_A_CLONE METHOD GIVEN.npz SHARE_OF_CLIENTS

Puts all weights into the file: the server's by round, and then what each client keeps.
"""

import importlib
import pathlib
import sys
import types

import numpy as np
import torch

ROUNDS, EPOCHS, BATCH = 3, 2, 5


class Args(types.SimpleNamespace):
    """Their arguments; those that are not given are 0."""

    def __getattr__(self, name):
        return 0


class Batches(list):
    """A stand-in for a DataLoader: as long as an epoch has batches, and each pass is an epoch."""

    def __iter__(self):
        yield from self.epochs.pop(0)


def main(pfllib, name, path, share):
    """Runs three rounds by the steps of their own."""
    sys.path.insert(0, str(pathlib.Path(pfllib, "system")))
    modules = (
        "trainmodel.models",
        "servers.serverbase",
        "clients.clientbase",
        f"servers.server{name}",
    )
    models, base, client_base, of_method = (importlib.import_module(f"flcore.{m}") for m in modules)
    given = {key: torch.tensor(array) for key, array in np.load(path).items()}
    start = [given[f"start_{k}"] for k in range(4)]
    dense, head = (torch.nn.Linear(*start[k].shape[::-1]) for k in (0, 2))
    model = models.BaseHeadSplit(torch.nn.Sequential(dense, torch.nn.ReLU()), head)
    for leaf, value in zip(model.parameters(), start, strict=True):
        leaf.data = value
    base.read_client_data = lambda dataset, client, **options: given[f"y_{client}"]
    client_base.Client.load_train_data = lambda client: client.batches
    args = Args(model=model, device="cpu", num_clients=4, join_ratio=float(share))
    vars(args).update(local_epochs=EPOCHS, local_learning_rate=0.1, server_learning_rate=1.0)
    vars(args).update(tau=0.5, mu=1.0, time_threthold=float("inf"))
    server, weights = getattr(of_method, name.upper())(args, 0), []
    for number in range(1, ROUNDS + 1):
        server.selected_clients = [server.clients[i] for i in given[f"ids_{number}"]]
        server.send_models()
        for client in server.selected_clients:
            x, y = given[f"x_{client.id}"], given[f"y_{client.id}"]
            orders = [order.split(BATCH) for order in given[f"rows_{number}_{client.id}"]]
            client.batches = Batches(orders[0])
            client.batches.epochs = [[(x[rows], y[rows]) for rows in order] for order in orders]
            client.train()
        server.receive_models()
        server.aggregate_parameters()
        weights += server.global_model.parameters()
    for client in server.clients:
        weights += client.client_c if name == "scaffold" else client.old_model.parameters()
    np.savez(path, *(leaf.detach().numpy() for leaf in weights))


if __name__ == "__main__":
    main(*sys.argv[1:])
