"""Next month's data: a run that goes on from last month's, beside one that begins anew.

  python examples/next_month.py watch.npz results/next_month.json

The file has the smartwatch data of seglearn 1.2.5, windows of two seconds [n, 100, 6] with their
exercise and subject. Each subject has done each exercise twice. Eight subjects have the first time
in the first month; in the second, all ten have the second time. The last fifth of each series is
for the test.
"""

import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile

import numpy as np
import tensorflow as tf

import tf_pflego as pfl

METHODS = {"pflego_shared_head": {"server_learning_rate": 0.008}, "pflego": {}, "fedavg": {}}
ROUNDS, SEEDS, SUBJECTS = (1, 5, 20), (0, 1, 2), 8


def month(path, number):
    """Returns the clients of a month, 0 or 1, called by their subjects."""
    with np.load(path) as file:
        windows, exercise, subject = (file[key] for key in ("windows", "exercise", "subject"))
    (starts,) = np.nonzero(np.diff(exercise, prepend=-1) | np.diff(subject, prepend=-1))
    times, rows = {}, {}
    for start, end in zip(starts, [*starts[1:], len(subject)], strict=True):
        person, key = subject[start], (subject[start], exercise[start])
        times[key] = times.get(key, -1) + 1
        if times[key] == number:
            cut = end - max(1, (end - start) // 5)  # The window before it shares samples with it.
            for part, piece in enumerate((range(start, cut - 1), range(cut, end))):
                rows.setdefault(person, ([], []))[part].extend(piece)
    there = sorted(rows)[: None if number else SUBJECTS]
    pairs = ([(windows[rows[n][p]], exercise[rows[n][p]]) for n in there] for p in (0, 1))
    names = [f"subject {person}" for person in there]
    how = {"label_space": "global", "num_classes": 7, "client_names": names, "name": "watch"}
    return pfl.from_arrays(*pairs, **how)


def model(clients, seed):
    """Returns convolutions over time under a head for the exercises."""
    layers = tf.keras.layers
    tf.keras.utils.set_random_seed(seed)
    body = [layers.Conv1D(size, 7, 2, activation="relu") for size in (16, 32)]
    first = tf.keras.Input(clients.example_shape)
    body = tf.keras.Sequential([first, *body, layers.GlobalAveragePooling1D()])
    return pfl.SplitModel(body, clients.num_global_classes, seed)


def accuracies(path, name, seed, directory):
    """Returns the test accuracy, a mean over clients, after each of ROUNDS, by how it began."""
    months = [month(path, number) for number in (0, 1)]
    config = pfl.RunConfig(
        algorithm=name,
        label_space="global",
        engine="in_process",
        clients_per_round=5,
        num_rounds=40,
        eval_every=1,
        seed=seed,
        output_dir=f"{directory}/{name}_{seed}",
    )
    settings = METHODS[name]
    pfl.run(config, clients=months[0], model=model(months[0], seed), **settings)
    found = {}
    for start_from in ("", config.output_dir):
        later = dataclasses.replace(
            config, num_rounds=max(ROUNDS), output_dir="", start_from=start_from
        )
        records = []
        pfl.run(
            later,
            on_round=lambda record, records=records: records.append(record),
            clients=months[1],
            model=model(months[1], seed),
            **settings,
        )
        curve = [record["test_accuracy/client_mean"] for record in records]
        found["goes_on" if start_from else "anew"] = [curve[t - 1] for t in ROUNDS]
    return found


def main(path, results):
    """Writes the means and the deviations over the seeds, as they come."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in METHODS:
            of_seeds = [accuracies(path, name, seed, directory) for seed in SEEDS]
            for begins in of_seeds[0]:
                by_round = list(zip(*(one[begins] for one in of_seeds), strict=True))
                for what, of in (("mean", statistics.mean), ("deviation", statistics.stdev)):
                    numbers = [round(of(accuracy), 4) for accuracy in by_round]
                    found[f"{name}/{begins}/{what}"] = dict(zip(ROUNDS, numbers, strict=True))
            text = json.dumps(found, indent=1) + "\n"
            pathlib.Path(results).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
