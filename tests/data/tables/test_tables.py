"""Clients are the rows of a table; features are fitted on the rows that are trained on."""

import dataclasses
import gzip
import json
import re
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tf_pflego as pfl
from tests.data.tables import schools
from tf_pflego.data.tables.preprocessing import Preprocessing

FEATURES = ["Sex", "SES"]
LEAST = 1e-6


def clients_of(table=None, **changed):
    settings = {"client_column": "School", "label_column": "Passed"}
    settings |= {"feature_columns": FEATURES} | changed
    return pfl.from_table(schools.table() if table is None else table, **settings)


def rows_of(clients):
    """Returns the rows of each client in the table, those of training and those of the test."""
    partition = clients.partition
    return list(zip(partition.train_indices, partition.test_indices, strict=True))


def test_each_value_of_a_column_is_a_client():
    clients = clients_of()
    assert clients.client_names == schools.SCHOOLS
    columns = schools.columns()
    assert clients.class_names == ("no", "yes")
    for client, (train, test) in enumerate(rows_of(clients)):
        rows = np.flatnonzero(columns["School"] == int(schools.SCHOOLS[client]))
        assert sorted([*train, *test]) == rows.tolist()
        assert len(test) == round(0.2 * len(rows))
        labels = np.array(clients.class_names)[clients.classes[client]][clients.train.of(client)[1]]
        np.testing.assert_array_equal(labels, columns["Passed"][train])


@pytest.mark.parametrize(
    "kind", ["csv", "tsv", "csv.gz", "parquet", "dictionary", "categories", "pandas"]
)
def test_the_same_table_in_other_forms(kind, tmp_path):
    expected, columns = clients_of(), schools.columns()
    table = columns
    if kind == "categories":
        table = schools.table(Sex=pa.array(columns["Sex"]).dictionary_encode())
    elif kind == "pandas":
        frame = pytest.importorskip("pandas").DataFrame(columns).astype({"Sex": "category"})
        table = frame.set_index(np.arange(len(frame))[::-1])
    elif kind != "dictionary":
        table = tmp_path / f"table.{kind}"
        text = schools.written(tmp_path / "plain.csv").read_bytes()
        if kind == "parquet":
            parquet.write_table(schools.table(), table)
        elif kind == "csv.gz":
            table.write_bytes(gzip.compress(text))
        else:
            table.write_bytes(text.replace(b",", b"\t") if kind == "tsv" else text)
    clients = clients_of(table)
    np.testing.assert_array_equal(clients.fingerprints, expected.fingerprints)
    assert clients.preprocessing == expected.preprocessing


def test_features_are_fitted_on_training_rows_alone():
    clients, columns = clients_of(), schools.columns()
    train = np.sort(np.concatenate(clients.partition.train_indices))
    sex, status = clients.preprocessing.columns
    assert sex.categories == ("Female", "Male")
    ses = columns["SES"].astype(np.float32)
    assert status.mean == pytest.approx(ses[train].mean(), abs=LEAST)
    assert status.deviation == pytest.approx(ses[train].std(), abs=LEAST)
    for split, which in ((clients.train, 0), (clients.test, 1)):
        rows = np.concatenate([pair[which] for pair in rows_of(clients)])
        one_hot = columns["Sex"][rows][:, None] == ["Female", "Male"]
        scaled = (ses[rows] - status.mean) / status.deviation
        expected = np.concatenate([one_hot, scaled[:, None]], axis=1)
        np.testing.assert_allclose(split.examples, expected, atol=LEAST)


@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
def test_what_no_training_row_has_gets_a_code_of_its_own(encoding):
    columns = schools.columns()
    is_test = columns["year"] % 3 == 0
    sex = np.where(is_test & (columns["SES"] > 0), "unknown", columns["Sex"])
    changed = {"SES": np.where(is_test, 1e9, columns["SES"]), "Sex": sex}
    table = schools.table(**changed, is_test=is_test)
    features = FEATURES if encoding == "one_hot" else ["Sex"]
    clients = clients_of(table, split="column:is_test", feature_columns=features, encoding=encoding)
    sex_column = clients.preprocessing.columns[0]
    assert sex_column.categories == ("Female", "Male")
    assert encoding == "codes" or abs(clients.preprocessing.columns[1].mean) < 1
    rows = np.concatenate(clients.partition.test_indices)
    unknown = clients.test.examples[sex[rows] == "unknown"][:, : 2 if encoding == "one_hot" else 1]
    assert len(unknown)
    assert not unknown.any()
    if encoding == "codes":
        assert clients.preprocessing.num_codes == (3,)
        assert clients.example_dtype == "int32"
        codes = {"Female": 1, "Male": 2, "unknown": 0}
        assert clients.test.examples[:, 0].tolist() == [codes[one] for one in sex[rows]]


def test_numbers_can_be_categories_and_raw_columns_become_the_same_examples():
    clients = clients_of(feature_columns=["Sex", "SES", "year"], category_columns=["year"])
    examples, columns = clients.test.examples, clients.preprocessing.columns
    train = np.concatenate(clients.partition.train_indices)
    assert columns[2].categories == tuple(sorted(schools.columns()["year"][train]))
    names = [column.name for column in columns]
    raw = dict(zip(names, clients.preprocessing.raw(examples), strict=True))
    assert raw["year"].min() > 1980
    again = clients.preprocessing.examples(pa.table(raw))
    np.testing.assert_allclose(again, examples, atol=LEAST)


def test_texts_become_counts_of_the_most_frequent_words_of_the_training_rows():
    vocabulary = np.array(["Alpha", "beta!", "'gamma", "DELTA", "it's", "--"])
    said = np.random.default_rng(4).choice(vocabulary, (sum(schools.SIZES), 6))
    texts = np.array([" ".join(row) + "\t " for row in said], object)
    texts[:2], is_test = [None, "omega " * 50], np.arange(len(texts)) % 2 == 1
    clients = clients_of(
        schools.table(essay=texts, is_test=is_test),
        feature_columns=["SES", "essay"],
        text_columns=["essay"],
        text_words=4,
        split="column:is_test",
        missing="mean",
    )
    plain = [re.sub("[^a-z ]", "", str(text or "").lower()).split() for text in texts]
    count = Counter(
        word for row, test in zip(plain, is_test, strict=True) if not test for word in row
    )
    words = sorted(count, key=lambda word: (-count[word], word))[:4]
    assert clients.preprocessing.columns[1].categories == tuple(words)
    expected = np.array([[row.count(word) for word in words] for row in plain], np.float32)
    rows = np.concatenate([*clients.partition.train_indices, *clients.partition.test_indices])
    found = np.concatenate([clients.train.examples, clients.test.examples])[:, 1:]
    np.testing.assert_array_equal(found, expected[rows])
    stored = json.loads(json.dumps(dataclasses.asdict(clients.preprocessing)))
    assert Preprocessing.of_json(stored) == clients.preprocessing


@pytest.mark.parametrize("missing", ["mean", "drop"])
def test_missing_values_are_filled_or_left_out(missing, tmp_path, caplog):
    caplog.set_level("INFO", "tf_pflego")
    columns = schools.columns()
    lines = schools.written(tmp_path / "table.csv").read_text().splitlines()
    rows = np.flatnonzero(columns["School"] == 1224)[:2]
    for row, name in zip(rows, ("SES", "Sex"), strict=True):
        cells = lines[row + 1].split(",")
        cells[list(columns).index(name)] = ""
        lines[row + 1] = ",".join(cells)
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    clients = clients_of(path, missing=missing)
    count = sum(len(split.labels) for split in clients.splits.values())
    said = "Passed (0 no, 1 yes) will be predicted from the numbers SES and the categories Sex"
    assert said in caplog.text
    if missing == "drop":
        assert count == sum(schools.SIZES) - 2
        assert "2 of 45 rows lack a value and are excluded" in caplog.text
        return
    assert count == sum(schools.SIZES)
    in_order = np.zeros([count, 3], np.float32)
    for split, indices in clients.partition.indices.items():
        in_order[np.concatenate(indices)] = clients.splits[split].examples
    assert in_order[rows[0], 2] == 0
    assert in_order[rows[1], :2].tolist() == [0, 0]


def test_the_last_rows_by_time_are_tested():
    clients, years = clients_of(split="last:0.3", time_column="year"), schools.columns()["year"]
    for client, (train, test) in enumerate(rows_of(clients)):
        assert years[test].min() > years[train].max()
        assert len(test) == round(0.3 * schools.SIZES[client])
    dates = (years - 1990).astype("datetime64[D]")
    by_date = clients_of(schools.table(year=dates), split="last:0.3", time_column="year")
    np.testing.assert_array_equal(by_date.fingerprints, clients.fingerprints)


@pytest.mark.parametrize("words", [("train", "test"), (0, 1), (False, True), ("Train", "TEST")])
def test_a_column_says_what_is_tested(words):
    is_test = schools.columns()["year"] % 3 == 0
    table = schools.table(part=np.array(words)[is_test.astype(int)])
    clients = clients_of(table, feature_columns=None, label_column="Passed", split="column:part")
    names = [column.name for column in clients.preprocessing.columns]
    assert names == ["Sex", "SES", "year", "MathAch"]
    rows = np.sort(np.concatenate(clients.partition.test_indices))
    np.testing.assert_array_equal(rows, np.flatnonzero(is_test))


def test_the_draw_follows_the_seed_and_leaves_a_row_of_each_kind():
    first, same, other = (clients_of(seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.fingerprints, same.fingerprints)
    assert not np.array_equal(first.fingerprints, other.fingerprints)
    table = pa.table(schools.columns(sizes=(2, 2, 9)))
    for share in (0.01, 0.99):
        clients = clients_of(table, split=share)
        assert clients.train.sizes.min() == clients.test.sizes.min() == 1


@pytest.mark.parametrize("on_small_client", ["drop", "merge"])
def test_small_clients_are_left_out_or_merged_and_counted(on_small_client, caplog):
    caplog.set_level("INFO", "tf_pflego")
    clients = clients_of(min_rows=10, on_small_client=on_small_client)
    expected = ("1224", "1296") if on_small_client == "drop" else ("1224", "1296", "others")
    assert clients.client_names == expected
    sizes = clients.train.sizes + clients.test.sizes
    assert sizes.tolist() == [12, 20, 13][: len(expected)]
    done = "left out" if on_small_client == "drop" else "merged into one, 'others'"
    assert f"2 of 4 clients, 13 of 45 rows, are {done}" in caplog.text
    if on_small_client == "drop":  # Their own values are not looked at.
        columns = schools.columns()
        is_small = np.isin(columns["School"], (1288, 1308))
        odd = schools.table(SES=np.where(is_small, np.inf, columns["SES"]))
        same = clients_of(odd, min_rows=10, on_small_client="drop")
        np.testing.assert_array_equal(same.fingerprints, clients.fingerprints)


def test_a_client_needs_a_row_of_each_kind_where_a_column_says_it():
    is_test, settings = schools.columns()["School"] == 1288, {"on_small_client": "drop"}
    with pytest.raises(ValueError, match="some for training and some for the test"):
        clients_of(schools.table(part=is_test), split="column:part", **settings)
    is_test[np.flatnonzero(~is_test)[:20]] = True
    clients = clients_of(schools.table(part=is_test), split="column:part", min_rows=2, **settings)
    assert "1288" not in clients.client_names


def test_labels_of_numbers_are_classes_by_their_values():
    clients = clients_of(schools.table(grade=np.resize([10, 0, 2], 45)), label_column="grade")
    assert clients.class_names == ("0", "2", "10")
    grades = np.array([0, 2, 10])[clients.classes[0]][clients.test.of(0)[1]]
    rows = clients.partition.test_indices[0]
    np.testing.assert_array_equal(grades, np.resize([10, 0, 2], 45)[rows])


@pytest.mark.parametrize("task", ["regression", "multi_label", "counts"])
def test_labels_of_other_tasks_are_columns(task):
    columns = schools.columns()
    columns["top"] = columns["MathAch"] > 12
    columns["old"] = (columns["year"] < 2010).astype(int)
    label = {"regression": "MathAch", "multi_label": ["top", "old"], "counts": ["year"]}[task]
    names = [label] if isinstance(label, str) else label
    clients = clients_of(pa.table(columns), label_column=label, task=task)
    assert (clients.task, clients.class_names) == (task, tuple(names))
    assert clients.num_classes.tolist() == [len(names)] * 4
    for client, (train, _) in enumerate(rows_of(clients)):
        expected = np.stack([columns[name][train] for name in names], axis=1)
        labels = clients.train.of(client)[1]
        assert labels.dtype == (np.int32 if task == "multi_label" else np.float32)
        np.testing.assert_allclose(labels, expected, rtol=LEAST)
