"""The definition of a federation: what it says, what it refuses, and what it makes of a site."""

import dataclasses
import json
import re

import numpy as np
import pytest

import tf_pflego as pfl
from tests.data.tables import schools
from tests.devices.federation import (
    NAMES,
    Site,
    clients_like,
    config_of,
    planned,
    site_of,
    two_steps,
)
from tf_pflego.devices import preview
from tf_pflego.devices.client_directory import Journal
from tf_pflego.devices.definition import Definition, DefinitionError
from tf_pflego.devices.resident import Resident
from tf_pflego.runs import build, loading
from tf_pflego.runs.config import RunConfig
from tf_pflego.runs.plan import Plan


@pytest.fixture
def definition():
    return two_steps()


def test_it_is_known_by_all_that_it_says(definition, tmp_path):
    definition.save(tmp_path / "definition.json")
    again = Definition.load(tmp_path / "definition.json")
    assert again.identity == definition.identity
    assert again.clients == NAMES
    definition.save(tmp_path / "definition.json")
    (tmp_path / "run.flags").write_text("--seed=1")
    with pytest.raises(ValueError, match="`define` must be a new file, or an earlier definition"):
        definition.save(tmp_path / "run.flags")
    assert (tmp_path / "run.flags").read_text() == "--seed=1"
    named = Definition.of(planned(config_of(), local_steps=2), name="hospitals")
    assert (named.dataset, definition.dataset) == ("hospitals", "custom")
    other = Definition.of(planned(config_of(seed=5), local_steps=2))
    longer = Definition.of(planned(config_of(num_rounds=900), local_steps=2))
    assert other.identity != definition.identity == longer.identity


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("format", 2, "it is not of the format 1"),
        ("version", "0.0.9", "it is of '0.0.9'. Install that version"),
        ("more", 1, "unexpected keyword argument 'more'"),
        ("settings/algorithm", "own.py:build", "`algorithm` must be one of pflego"),
        ("settings/output_dir", "/tmp/x", "must not have the setting 'output_dir'"),
        ("settings/label_space", "none", "`label_space` must be one of local, global"),
        ("hyper_parameters", [], "`hyper_parameters` must be of the class Mapping; got list"),
        ("hyper_parameters/local_steps", 10**7, "`local_steps` must be at most 1000000"),
        ("class_names", ["a", "\x1b[2J", "c", "d"], "texts of one printable line"),
        ("preprocessing", {"columns": [{"name": "x"}]}, "`preprocessing` must be of columns"),
        ("hyper_parameters/code", "x", "must be a hyper-parameter of pflego"),
        ("clients", ["north", "north"], "must differ"),
        ("facts/example_shape", [0], "`example_shape` must be sizes from 1 on"),
        ("facts/num_classes", "two", "must be a"),
        ("example_dtype", "object", "`example_dtype` must be one of uint8"),
    ],
)
def test_a_file_that_says_something_else_is_refused(definition, tmp_path, name, value, message):
    path = tmp_path / "definition.json"
    definition.save(path)
    content = json.loads(path.read_text())
    *parents, last = name.split("/")
    (content[parents[0]] if parents else content)[last] = value
    path.write_text(json.dumps(content))
    with pytest.raises(DefinitionError, match=r"`definition` must be a file .* wrote") as caught:
        Definition.load(path)
    assert message in str(caught.value)
    path.write_text("{" * 10)
    with pytest.raises(DefinitionError, match="cannot be read"):
        Definition.load(path)


@pytest.mark.parametrize(("name", "value"), [("attack", "noise"), ("num_new_clients", 1)])
def test_what_is_of_a_simulation_alone_is_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be another for clients on other machines"):
        Definition.of(planned(config_of(**{name: value})))


def test_the_server_has_clients_without_examples(definition):
    sizes = [5, 6, 10**6]
    clients = definition.server_clients(sizes)
    assert clients.client_names == NAMES
    assert clients.train.sizes.tolist() == sizes
    assert clients.train.examples.strides[0] == 0
    np.testing.assert_array_equal(clients.client_weights, np.float32(sizes / np.sum(sizes)))
    with build.build_simulation(config_of(), definition.server_clients()) as simulation:
        assert simulation.algorithm.model.num_classes == 2


def test_a_site_has_its_part_of_the_federation(definition):
    whole = clients_like()
    for number, name in enumerate(NAMES):
        client = definition.client(name, site_of(number))
        np.testing.assert_array_equal(client.fingerprints, whole.fingerprints[[number]])
        assert client.identities.tolist() == [number]
        alone = whole.part(number, number + 1)
        for ids in (client, alone):
            np.testing.assert_array_equal(ids.head_classes([0], 2), [[number, number + 1]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"train_examples": np.zeros([5, 4]), "test_examples": np.zeros([3, 4])},
            "got float32 (4,)",
        ),
        ({"train_labels": np.array([0, 1, 2, 1, 0])}, "2 classes (or fewer) or outputs; got"),
        ({"train_labels": np.array(["a"] * 5)}, "which have none; got 'a'"),
        ({"train_examples": np.full([5, 3], np.nan)}, "finite"),
    ],
)
def test_data_that_do_not_fit_are_refused(definition, changes, message):
    with pytest.raises(ValueError) as caught:
        definition.client("north", site_of(0) | changes)
    assert message in str(caught.value)


def test_labels_may_be_names_of_classes():
    names = np.array(["ant", "bee", "cat", "dog"])
    named = [site_of(k) for k in range(3)]
    for site in named:
        site |= {key: names[site[key]] for key in ("train_labels", "test_labels")}
    every = {key: np.concatenate([site_of(k)[key] for k in range(3)]) for key in named[0]}
    pairs = ([(every[f"{one}_examples"], every[f"{one}_labels"])] for one in ("train", "test"))
    sample = pfl.from_arrays(*pairs, class_names=names)
    definition = Definition.of(Plan.of(config_of(clients_per_round=1), clients=sample), ["x", "y"])
    client = definition.client("y", named[1])
    assert client.class_names_of(0) == ("bee", "cat")
    assert definition.algorithm().model.num_classes == 4


def test_clients_that_count_alike(tiny_clients):
    uniform = dataclasses.replace(tiny_clients, uniform_weights=True)
    assert uniform.client_weights.tolist() == [np.float32(1 / 3)] * 3
    some = uniform.shard(np.array([0, 2]))
    assert some.client_weights.tolist() == [np.float32(1 / 3)] * 2


def test_a_table_of_a_sites_rows(tmp_path):
    table = schools.written(tmp_path / "pupils.csv")
    config = RunConfig(
        table=table, client_column="School", label_column="Passed", feature_columns="Sex,SES",
        clients_per_round=2, on_small_client="drop", min_rows=6, network="mlp",
    )  # fmt: skip
    clients = loading.load_clients(config)
    definition = Definition.of(Plan.of(config, clients=clients))
    definition.save(tmp_path / "definition.json")
    definition = Definition.load(tmp_path / "definition.json")
    name = clients.client_names[1]
    site = definition.client(name, definition.arrays_of_table(table))
    assert site.preprocessing == clients.preprocessing
    assert site.class_names == clients.class_names
    lines = preview.promised(Resident(definition, site, Journal(tmp_path)), definition)
    assert "  Of its rows it reads Sex, SES, and Passed as the label." in lines
    assert len(site.train.labels) + len(site.test.labels) == 45
    whole = pfl.from_table(table, "School", "Passed", ["Sex", "SES"])
    assert whole.example_shape == site.example_shape
    one_class = schools.written(tmp_path / "one.csv", schools.columns() | {"Passed": ["yes"] * 45})
    site = definition.client(name, definition.arrays_of_table(one_class))
    assert (site.class_names, site.class_names_of(0)) == (clients.class_names, ("yes",))
    with_gap = schools.columns()
    with_gap["SES"] = [None, *with_gap["SES"][1:]]
    with_gap = schools.written(tmp_path / "gap.csv", with_gap)
    with pytest.raises(ValueError, match="choose `missing='drop'`"):
        definition.arrays_of_table(with_gap)
    arrays = definition.arrays_of_table(with_gap, "drop")
    assert len(arrays["train_labels"]) + len(arrays["test_labels"]) == 44


@pytest.mark.parametrize(
    ("method", "uploads"),
    [
        ("pflego", "dense/bias [200] (for a sum)"),
        ("ditto", "dense/bias [200], head [2, 201] (for a mean)"),
        ("pgfed", "0/gradient/head [2, 201], 0/offset [] and 1 more (as it is)"),
    ],
)
def test_it_is_said_of_uploads_of_every_kind(method, uploads, tmp_path):
    definition = Definition.of(planned(config_of(algorithm=method)))
    lines = preview.promised(Site(definition, 0, tmp_path).resident, definition)
    (line,) = [line for line in lines if "it sends" in line]
    sent = re.sub(r"body/(mlp/)?dense(_\d+)?", "body/dense", line)
    assert "bytes: body/dense/kernel [3, 200], body/" in sent
    assert uploads in sent
    assert "who sees what is sent can find some of them" in lines[-1]
