"""The reader adds, tears and changes nothing: ids stay text, numbers stay numbers."""

import decimal
import time
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tf_pflego as pfl

COUNT = 40
LABELS = [row // 4 % 2 for row in range(COUNT)]
NUMBERS = [row % 7 + 0.5 for row in range(COUNT)]


def turns(values):
    """One of the values for each row in turn."""
    return [values[row % len(values)] for row in range(COUNT)]


def table_of(**changed):
    return {"user": turns(["a", "b"]), "x": NUMBERS, "y": LABELS} | changed


def written(path, text):
    path.write_bytes(text.encode())
    return path


def rows_of(columns, separator=","):
    rows = zip(*columns.values(), strict=True)
    return "".join(separator.join(map(str, row)) + "\n" for row in ([*columns], *rows))


def read(table, **settings):
    return pfl.from_table(table, "user", "y", **settings)


AS_WRITTEN = [
    ["01", "1", "001"],
    ["0x1f", "31"],
    ["1e5", "100000", "1.0", "1"],
    ["12345678901234567890", "12345678901234567891"],
    ["true", "True2", "2020-01-01"],
    ["a" * 200, "b" * 64],
]


@pytest.mark.parametrize("role", ["user", "y", "kind"])
@pytest.mark.parametrize("values", AS_WRITTEN, ids=lambda values: values[0][:9])
def test_ids_of_a_file_are_text(values, role, tmp_path):
    columns = table_of(kind=turns(["p", "q", "r"])) | {role: np.resize(np.repeat(values, 7), COUNT)}
    path = written(tmp_path / "rows.csv", rows_of(columns))
    clients = read(path, feature_columns=["x", "kind"], category_columns=["kind"])
    found = {
        "user": clients.client_names,
        "y": clients.class_names,
        "kind": clients.preprocessing.columns[1].categories,
    }
    assert set(found[role]) == set(columns[role])


def decimals(values, kind):
    return pa.array(turns(list(map(decimal.Decimal, values))), kind)


IDS = {
    "uint64": (np.array(turns([2**64 - 1, 2**64 - 2]), np.uint64), {2**64 - 1, 2**64 - 2}),
    "integers of Python": (turns([2**64 - 1, 2**64 - 2]), {2**64 - 1, 2**64 - 2}),
    "int8": (np.array(turns([-5, 6]), np.int8), {-5, 6}),
    "decimal": (decimals([2**53, 2**53 + 1], pa.decimal128(38, 0)), {2**53, 2**53 + 1}),
    "with zeros": (decimals(["1.00", "2.00"], pa.decimal128(5, 2)), {1, 2}),
    "whole floats": (turns([1.0, 2.0]), {1, 2}),
    "half floats": (np.array(turns([5, 6]), np.float16), {5, 6}),
    "views": (
        pa.DictionaryArray.from_arrays(
            pa.array(turns([0, 1]), pa.uint32()), pa.array(["01", "1"], pa.string_view())
        ),
        {"01", "1"},
    ),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_all_types_are_exact(kind):
    column, expected = IDS[kind]
    assert set(read(table_of(user=column)).client_names) == set(map(str, expected))


@pytest.mark.parametrize("start", [1_700_000_000, 1_700_000_000 * 10**9, -(2**40)])
def test_numbers_far_from_zero_stay_apart(start):
    numbers = start + np.arange(COUNT) * max(1, abs(start) // 10**10)
    clients = read(table_of(x=numbers))
    (column,) = clients.preprocessing.columns
    for split, indices in clients.partition.indices.items():
        expected = (numbers[np.concatenate(indices)] - start).astype(np.float64)
        expected = (expected - (column.mean - start)) / column.deviation
        np.testing.assert_allclose(clients.splits[split].examples[:, 0], expected, atol=1e-4)


FORMS = {
    "semicolons": (";", "{},5", {}),
    "tabs": ("\t", "{},5", {}),
    "bars": ("|", "{}.5", {}),
    "said": (":", "{}.5", {"separator": ":"}),
    "quoted": (",", '"{},5"', {}),
    "thousandths": (";", "{},500", {"decimal": ","}),
}


@pytest.mark.parametrize("form", FORMS)
def test_separators_and_decimals_are_found_or_said(form, tmp_path):
    separator, cell, settings = FORMS[form]
    numbers = [2000, *(cell.format(row) for row in range(1, COUNT))]
    path = written(tmp_path / "rows.csv", rows_of(table_of(x=numbers), separator))
    expected = read(table_of(x=[2000, *(row + 0.5 for row in range(1, COUNT))]))
    assert read(path, **settings).preprocessing == expected.preprocessing


@pytest.mark.parametrize(
    ("first", "end"), [("", "\r\n"), ("", "\r"), ("\n\n", "\n"), ("\ufeff", "\n")]
)
def test_ids_are_text_however_lines_end(first, end, tmp_path):
    rows = rows_of(table_of(user=turns(["01", "1"]))).replace("\n", end)
    path = written(tmp_path / "rows.csv", first + rows)
    assert read(path).client_names == ("01", "1")


@pytest.mark.parametrize("length", [10, 10**6])
def test_cells_may_have_line_breaks(length, tmp_path):
    notes = [f'"{"." * (length + row)}\n, more"' for row in range(COUNT)]
    path = written(tmp_path / "rows.csv", rows_of({"note": notes} | table_of()))
    clients, expected = read(path, feature_columns=["x"]), read(table_of())
    np.testing.assert_array_equal(clients.fingerprints, expected.fingerprints)


def test_no_columns_come_from_an_index_or_a_directory(tmp_path):
    about = b'{"index_columns": ["__index_level_0__", "row"], "columns": []}'
    columns = table_of(__index_level_0__=range(COUNT), row=range(COUNT))
    table = pa.table(columns).replace_schema_metadata({b"pandas": about})
    place = tmp_path / "rate=0.1" / "user=z"
    place.mkdir(parents=True)
    parquet.write_table(table, place / "rows.parquet")
    for source in (table, place / "rows.parquet"):
        clients = read(source)
        assert [column.name for column in clients.preprocessing.columns] == ["x"]
        assert clients.client_names == ("a", "b")


def test_columns_may_be_numbered():
    clients = pfl.from_table({0: turns(["a", "b"]), 1: NUMBERS, 2: LABELS}, 0, 2, [1])
    np.testing.assert_array_equal(clients.fingerprints, read(table_of()).fingerprints)


@pytest.mark.parametrize("end", ["csv", "tsv", "parquet"])
def test_an_empty_cell_in_quotes_is_no_value_and_a_code_is_no_number(end, tmp_path):
    columns = table_of(county=turns(["01001", "6037"]), age=turns(["30", "", "40"]))
    columns["sex"] = turns(["f", "", "m"])
    path = tmp_path / f"rows.{end}"
    if end == "parquet":
        ages = [int(age) if age else None for age in columns["age"]]
        parquet.write_table(pa.table(columns | {"age": ages}), path)
    else:
        quoted = {name: [f'"{cell}"' for cell in cells] for name, cells in columns.items()}
        written(path, rows_of(quoted, {"csv": ",", "tsv": "\t"}[end]))
    _, county, age, sex = read(path, missing="mean").preprocessing.columns
    assert county.categories == ("01001", "6037")
    assert sex.categories == ("f", "m")
    assert 30 < age.mean < 40
    with pytest.raises(ValueError, match=r"'age' must have a value in .* of 'sex'"):
        read(path)


def test_what_nobody_named_and_is_no_feature_is_left_out_with_a_line(caplog):
    caplog.set_level("INFO", "tf_pflego")
    days = np.datetime64("2020-01-01") + np.arange(COUNT)
    table = table_of(day=days, note=[f"note {row}" for row in range(COUNT)])
    assert [column.name for column in read(table).preprocessing.columns] == ["x"]
    assert "note (40 texts)" in caplog.text
    assert "day (date32[day])" in caplog.text
    for kind in ("D", "s", "ns"):
        (day,) = read(
            table | {"day": days.astype(f"M8[{kind}]")}, feature_columns=["day"]
        ).preprocessing.columns
        assert 18262 < day.mean < 18302
        np.testing.assert_allclose(day.raw_of(days[:2]), [18262, 18263])


def test_rows_without_a_label_are_left_out_where_a_mean_fills_features():
    labels = [None if row % 9 == 0 else row // 4 % 2 for row in range(COUNT)]
    table = table_of(x=[None, *NUMBERS[1:]], y=labels)
    clients = read(table, missing="mean")
    assert len(clients.train.labels) + len(clients.test.labels) == COUNT - 5


def test_names_of_all_scripts_are_taken():
    names = ("\u00cele de\u00a0France", "\u06cc\u200c\u0634", "\U0001f469\u200d\u2695\ufe0f")
    assert set(read(table_of(user=turns(names))).client_names) == {*names}


MOMENTS = [f"2020-0{1 + row // 28}-{1 + row % 28:02}" for row in range(COUNT)]


@pytest.mark.parametrize("end", ["", "T10:30:00", " 10:30:00.123456789", "T10:30:00Z"])
def test_text_in_iso_8601_is_a_time(end):
    clients = read(
        table_of(day=[moment + end for moment in MOMENTS]),
        feature_columns=["x"], split="last:0.2", time_column="day",
    )  # fmt: skip
    assert np.sort(np.concatenate(clients.partition.test_indices)).tolist() == [*range(32, 40)]


def test_later_tables_are_prepared_and_number_their_classes_as_the_first():
    names = np.array(["low", "mid", "top"])
    first = read(table_of(y=names[np.arange(COUNT) % 3]), label_space="global")
    settings = {"preprocessing": first.preprocessing, "label_space": "global"}
    later = read(table_of(user=["c"] * COUNT, y=["mid"] * COUNT), **settings)
    assert later.class_names == first.class_names == ("low", "mid", "top")
    assert set(later.train.labels) == {1}
    joined = first.joined_by(later)
    assert joined.class_names_of(2) == ("low", "mid", "top")
    assert joined.preprocessing == later.preprocessing == first.preprocessing
    with pytest.raises(ValueError, match=r"'y' must be of the classes .*, low, mid, top; row 3"):
        read(table_of(y=["mid"] * 3 + ["new"] * 37), **settings)
    other = read(table_of(user=["c"] * COUNT, y=turns(["mid", "top"])), label_space="global")
    with pytest.raises(ValueError, match=r"must have the classes of the others, .*; got .'mid',"):
        first.joined_by(other)
    scaled = read(table_of(x=np.arange(COUNT), y=names[np.arange(COUNT) % 3]), label_space="global")
    with pytest.raises(ValueError, match="must have the columns of the others"):
        first.joined_by(scaled)


@pytest.mark.thorough
def test_work_grows_with_the_number_of_columns():
    def seconds(count):
        columns = {f"g{column}": np.arange(COUNT) + column for column in range(count)}
        start = time.process_time()
        read(table_of(**columns))
        return time.process_time() - start

    seconds(10)
    assert seconds(8000) < 8 * seconds(2000)


def test_large_labels_take_no_room():
    pairs = [(np.eye(3), np.array([10**7, 10**7 + 1, 5])) for _ in range(3)]
    tracemalloc.start()
    clients = pfl.from_arrays(pairs, pairs)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
    assert clients.num_global_classes == 10**7 + 2
