"""docs/recipes.md makes clients of rows and files in the forms of others."""

import json
import re
import sys
import types

import numpy as np
import pytest
from pyarrow import csv

from tests.docs import pages

PAGE = (pages.ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
IMAGES = np.float32(np.arange(2 * 8 * 12).reshape(2, 8, 2, 2, 3))  # Two clients have eight each.
LABELS = np.arange(16).reshape(2, 8) % 2


def clients_of(section, number=0, **names):
    """Runs a block of a section that needs files or rows; returns the clients that it makes."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    exec(re.findall(r"```py\n(.*?)```", text, re.DOTALL)[number], names)
    return names["clients"]


@pytest.fixture(autouse=True)
def in_its_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def assert_are(clients, images, labels):
    """Asserts that clients have these: the last two for the test, all others for training."""
    for client in range(2):
        for split, part in ((clients.train, slice(6)), (clients.test, slice(6, 8))):
            examples, classes = split.of(client)
            np.testing.assert_array_equal(examples, images[client, part])
            np.testing.assert_array_equal(classes, labels[client, part])


def test_a_dataset_of_hugging_face_is_a_table(tmp_path, monkeypatch):
    pupils = [f"{'north' if i % 2 else 'south'},{i},{'yes' if i > 9 else 'no'}" for i in range(20)]
    (tmp_path / "pupils.csv").write_text("\n".join(["school,age,passed", *pupils]))
    package = types.ModuleType("datasets")
    package.load_dataset = lambda kind, data_files, split: types.SimpleNamespace(
        with_format={"arrow": csv.read_csv(data_files)}.get
    )
    monkeypatch.setitem(sys.modules, "datasets", package)
    clients = clients_of("Hugging Face datasets")
    assert clients.client_names == ("north", "south")
    assert sum(clients.train.sizes) + sum(clients.test.sizes) == 20


def test_rows_are_gathered_by_their_clients():
    rows = [
        {"writer": writer, "image": IMAGES[client, i].tolist(), "digit": int(LABELS[client, i])}
        for i in range(8)
        for client, writer in enumerate(("bo", "al"))
    ]
    clients = clients_of("Hugging Face datasets", 1, rows=rows)
    assert clients.client_names == ("bo", "al")
    order = np.random.default_rng(0).permutation(8)
    assert_are(clients, IMAGES[:, order], LABELS[:, order])


def test_files_of_leaf(tmp_path):
    """Several files have the users of a folder, and each folder has them in an order of its own."""
    for folder, part, order in (("train", slice(6), (0, 1)), ("test", slice(6, 8), (1, 0))):
        directory = tmp_path / "femnist" / "data" / folder
        directory.mkdir(parents=True)
        for number, user in enumerate(order):
            x, y = IMAGES[user, part].reshape(-1, 12).tolist(), LABELS[user, part].tolist()
            name = f"f{user:04}_07"
            content = {"users": [name], "num_samples": [len(y)]}
            content["user_data"] = {name: {"x": x, "y": y}}
            file = directory / f"all_data_{number}_niid_0_keep_0_{folder}_9.json"
            file.write_text(json.dumps(content))
    clients = clients_of("LEAF")
    assert clients.client_names == ("f0000_07", "f0001_07")
    assert_are(clients, IMAGES.reshape(2, 8, 12), LABELS)


def test_files_of_pfllib(tmp_path):
    """Eleven clients, of whom the one with the number 10 comes last."""
    for folder, part in (("train", slice(6)), ("test", slice(6, 8))):
        directory = tmp_path / "Cifar10" / folder
        directory.mkdir(parents=True)
        for number in range(11):
            x = np.moveaxis(IMAGES[number % 2, part], -1, 1) + number // 2
            with open(directory / f"{number}.npz", "wb") as file:
                np.savez_compressed(file, data={"x": x, "y": LABELS[number % 2, part]})
    clients = clients_of("PFLlib")
    assert_are(clients, IMAGES, LABELS)
    assert clients.train.of(10)[0][0, 0, 0, 0] == 5


def test_what_the_image_for_docker_copies_is_there():
    copied = re.findall(r"^COPY (.*) \S+$", PAGE, re.MULTILINE)
    names = " ".join(copied).split()
    assert {"pyproject.toml", "tf_pflego"} <= set(names)
    assert all((pages.ROOT / name).exists() for name in names)
