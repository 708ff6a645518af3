"""All methods of `fair_field` in federations that are small enough for all of them.

  TF_PFLEGO_TABLES=DIR tf-pflego sweep run_configs/experiments/small_field.py:field_high \\
      --output_dir=results --jobs=2

Two federations: 6000 images of Fashion-MNIST among 50 clients with two classes each, of whom ten
participate in each of 60 rounds (field_high), and the ten wearers of a watch of tables.py, five in
each of 40 rounds (field_watch). DIR has watch.npz.

Each method has the settings of `fair_field` to choose among, with larger rates where its server has
one, tried for half as many rounds on clients of another seed. Methods of local mini-batches pass
twice over a participant's data in a round; the others take 50 full-batch steps, of which PFLEGO's,
PFLEGO's with a shared head and FedRecon's pass the network but once or twice. In field_high, as in
`fair_field`, some methods have a second row with the shared head's server. Labels are the
dataset's, with a mask of the classes that a client holds. Other settings have the method's default.
"""

import dataclasses

import tables
from fair_field import METHODS, WITH_MUON, choices
from shared_head import MUON

import tf_pflego as pfl
from tf_pflego.core import seeds
from tf_pflego.sweeps import Experiment

_SETTINGS = {
    **{key: {"server_learning_rate": (0.003, 0.01, 0.03)} for key in ("pflego", "fedrecon")},
    "pflego_shared_head": {"server_learning_rate": (0.004, 0.008, 0.02)},
    **{key: {"momentum": 0.9} for key in ("fedrep", "fedbn")},
}


def _cell(method):
    return {"algorithm": method} | choices(method) | _SETTINGS.get(method, {})


def _some(split, rng, count):
    rows = rng.choice(len(split.labels), count, replace=False)
    return dataclasses.replace(split, examples=split.examples[rows], labels=split.labels[rows])


def images(name, count, num_clients, classes_per_client):
    """Returns the function to clients of a part of a dataset."""

    def clients_of(run):
        seed, whole = run["seed"], pfl.load_dataset(name)
        rng, classes = seeds.generator(seed, "fair_field/images"), whole.num_classes
        train, test = _some(whole.train, rng, count), _some(whole.test, rng, count // 3)
        labels = train.labels, test.labels
        partition = pfl.round_robin(*labels, num_clients, classes_per_client, classes, seed)
        dataset = dataclasses.replace(whole, train=train, test=test)
        return pfl.assign_clients(dataset, partition, label_space="global", class_mask=True)

    return clients_of


def _field(title, clients, rounds, participants, known=(), with_muon=(), **about):
    known = {cell["algorithm"]: cell for cell in known}
    cells = [known.get(method, _cell(method)) for method in METHODS]
    cells += [{"name": f"{method}_muon"} | _cell(method) | MUON for method in with_muon]
    return experiment(title, cells, clients, rounds, participants, **about)


def experiment(title, cells, clients, rounds, participants, **about):
    """Returns the experiment of a small federation, of which half the rounds tune settings."""
    settings = {"clients_per_round": participants, "num_rounds": rounds, "eval_every": 10}
    settings |= {"local_epochs": 2, "batch_size": 32, "label_space": "global", "class_mask": True}
    return Experiment(
        cells,
        settings,
        seeds=(0, 1, 2),
        title=title,
        tuning={"num_rounds": rounds // 2},
        clients=clients,
        **about,
    )


field_high = _field(
    "Fashion-MNIST, two classes per client",
    images("fashion_mnist", 6000, 50, 2),
    60,
    10,
    with_muon=WITH_MUON,
)
field_watch = _field(
    "A watch, whose 10 wearers are clients",
    tables.watch.clients,
    40,
    5,
    # The rates of PFLEGO that suit the scale of these features were found there.
    known=[cell for cell in tables.watch.cells if "pflego" in cell["algorithm"]],
    model=tables.watch.model,
)
