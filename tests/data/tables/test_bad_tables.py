"""Bad tables and labels: one line says what was expected, what came and what to do."""

import dataclasses
import datetime
import decimal
import gzip
import os

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tf_pflego as pfl
from tests.data.tables import schools
from tf_pflego.data.tables import reading
from tf_pflego.system import limited_files

COUNT = sum(schools.SIZES)
DEFAULTS = {"client_column": "School", "label_column": "Passed", "feature_columns": ["Sex", "SES"]}


# What is a table's, by what changes in it.
TABLES = [
    ({"School": [None] + [1224] * 44}, "'School' must have a value in every row; 1 of 45 have "),
    ({"School": np.arange(COUNT)}, "2 rows or more; 45 of 45 clients have not, the first is '0' "),
    ({"School": np.arange(COUNT)}, {"on_small_client": "drop"}, "45 of 45 clients have not"),
    ({"School": ["a"] + ["b"] * 44}, {"on_small_client": "merge"}, "the first is 'others' with 1"),
    ({"School": ["others"] * 44 + ["b"]}, {"on_small_client": "merge"},
     "have no client 'others' of"),
    ({"School": ["a", "A"] * 20 + ["a"] * 5}, "of names; .* got '.' and '.'. Rename"),
    ({"School": np.full(COUNT, 2.0**53)}, "'School' must be of integers or of text; row 0 has "
     "9007199254740992.0, and double cannot distinguish integers from 9007199254740992 on"),
    ({"School": [decimal.Decimal("1.5")] * COUNT}, "of whole numbers or of text; got decimal"),
    ({"Passed": ["no"] * COUNT}, "'Passed' must have two classes or more, .*got 1 in 45"),
    ({"Passed": np.linspace(0, 1, COUNT)}, "'Passed' must be of whole numbers or of text; .* "
     "Choose `task='regression'` to predict numbers"),
    ({"MathAch": [np.nan] + [1.0] * 44}, {"task": "regression", "label_column": "MathAch"},
     "'MathAch' "
     "must have a value in every row; 1 of 45 have none, the first is row 0"),
    ({"Passed": [[1, 0]] * COUNT}, "'Passed' must be of numbers, text or truth values; got l"),
    ({"SES": [np.nan] + [1.0] * 44}, "'SES' must have a value in every row; .*`missing='mean'`"),
    ({"SES": [None] * COUNT}, "'SES' must be of numbers, .*; got no value in any row"),
    ({"SES": [np.nan] * COUNT}, {"missing": "mean"}, "'SES' must have a value in some training"),
    ({"SES": [np.nan] * COUNT}, {"missing": "drop"}, "must have rows without a missing value; got"),
    ({"SES": [1e39] + [1.0] * 44}, "'SES' must be of finite numbers within float32"),
    ({"SES": ["?", *map(str, range(44))]}, r"of categories; got numbers, and '\?' among them"),
    ({"SES": [f"{k},163" for k in range(1, 46)]}, "'1,163' among them.*write 1163 .*`decimal=','`"),
    ({"Sex": [f"id {k}" for k in range(COUNT)]}, "'Sex' must be of categories, each of several "
     "rows; got 45 texts in 45 rows, such as 'id 0'. .* name 'Sex' in `category_columns`"),
    ({"SES": 2**62 + np.arange(COUNT)}, "'SES' must be of numbers that differ in float64"),
    ({"Sex": np.full(COUNT, 2**63, np.uint64)}, {"category_columns": ["Sex"]},
     "within int64"),
    ({"year": ["31/01/2020"] * COUNT}, {"split": "last", "time_column": "year"},
     "'year' must be of numbers"
     ", of times, or of text as 2020-01-31 .*; got text such as '31/01/2020', .*to_datetime"),
    ({"School": [datetime.date(2020, 1, 1)] * COUNT}, "'School' must be of .*; got date32.*Make"),
    ({"Sex": [f"{k} names" for k in range(COUNT)] * 100, "School": [7] * 4500, "SES": [1] * 4500,
      "year": [1] * 4500, "Passed": [0, 1] * 2250, "MathAch": [1] * 4500}, {"most": 40},
     "'Sex' must have at most 40 categories, since each is a feature; got 45"),
    ({"Passed": ["no", "no "] * 22 + ["no"]}, "'Passed' must be of classes; .*got 'no' and 'no '"),
    ({"School": ["a\u202eb"] * COUNT}, r"with the character U\+202E \(RIGHT-TO-LEFT OVERRIDE\)"),
    ({"part": ["maybe"] * COUNT}, {"split": "column:part"},
     "train or test, or 0 or 1; got 'maybe'"),
]  # fmt: skip

# What is an argument's.
ARGUMENTS = [
    ({"client_column": "school"}, "which are 'School', .*; got 'school'. Did you mean School"),
    ({"table": {"School": pa.array([b"\xff"]).view(pa.string())}}, "a whole .*Invalid UTF8"),
    ({"label_column": []},
     "`label_column`, `feature_columns` and `split` must be different columns, .*; got no label"),
    ({"label_column": ["Passed", "Sex"], "feature_columns": ["SES"]},
     "`label_column` must be one column for classific"),
    ({"label_column": "SES"}, "must be different columns, .*; got 'SES' twice"),
    ({"category_columns": ["SES"]}, "'SES' must be of whole numbers or of text; row"),
    ({"text_columns": ["SES"]}, "'SES' must be of text for its words to count; got double"),
    ({"text_columns": ["Sex"], "encoding": "codes"},
     "`encoding` must be one_hot for texts, .*; got c"),
    ({"text_columns": ["Sex"], "category_columns": ["Sex"]},
     "`text_columns` must be other columns .*; got 'Sex'"),
    ({"text_columns": ["year"]},
     "`text_columns` must be some of the features, 'Sex', 'SES'; got 'year'"),
    ({"text_columns": ["Sex"], "text_words": 0}, "`text_words` must be at least 1; got 0"),
    ({"text_words": 9}, "`text_words` must not be given without `text_columns`, .*; got 9"),
    ({"text_columns": ["Sex"], "table": schools.table(Sex=["?!"] * COUNT)},
     "a word in some training row"),
    ({"time_column": "year"},
     "`time_column` must be given only if `split` is last; got 'year'"),
    ({"separator": ","}, "`separator` and `decimal` must not be given for a table that is no CSV"),
    ({"encoding": "ordinal"}, "`encoding` must be one of one_hot, codes; got 'ordinal'"),
    ({"split": 0}, r"`split` must be random or last, .* or column:NAME; got 0. Correct `split`"),
    ({"task": "regression"}, "the column 'Passed' must be of numbers; got text, such as '"),
    ({"task": "multi_label", "label_column": ["MathAch"]},
     "must be 0 or 1, one for each label, for"),
    ({"task": "regression", "label_column": "late",
     "table": schools.table(late=1.7e9 + np.arange(45))},
     "the column 'late' must be numbers that differ in float32; got 1700000000.0 to "
     "1700000044.0. Subtract 1700000022.0 from all"),
    ({"task": "counts", "label_column": "MathAch"},
     "must be whole numbers from 0 on, for counts; got"),
    ({"preprocessing": "runs/first"}, TypeError, "`preprocessing` must be of the class Preproc"),
    ({"table": 3}, TypeError, "`table` must be the path of a CSV or Parquet file, .*; got int"),
    ({"table": {"a": [2**70]}}, "the column 'a' has larger integers"),
    ({"separator": "::"}, "`separator` must be one character, .*; got '::'"),
    ({"decimal": "'"}, "`decimal` must be one of auto, ., ,; got"),
    ({"table": {"a": [1], "b": [1, 2]}}, "`table` must be a whole table, .*cannot be read"),
    ({"table": "s3://bucket/table.csv"}, "`table` must be a path of this machine; got 's3"),
]  # fmt: skip

# What is a file's: its name and its content.
FILES = [
    (".", None, "`table` must be a file of rows; .* is no file"),
    ("table.xlsx", b"PK", "must be a .csv, .tsv or .parquet file, .*; got 'table.xlsx'"),
    ("table.csv", b"", "table.csv must be a whole table, .*; it cannot be read .*Empty CSV file"),
    ("table.csv", b"Sch\x15ool,Passed\n1,yes\n", r"Did you mean Sch\\x15ool\? Correct"),
    ("table.csv", b"School,Passed\n1,yes,\x1b\n", r"Expected 2 columns, got 3: 1,yes,\\x1b\). Co"),
    ("table.csv", b"School,School\n1,1\n", "table.csv must have rows, .*; got the name 'School'"),
    ("table.csv", b"School,\n1,1\n", "table.csv must have .*; got a column without a name"),
    ("table.csv", b"School:Passed\n1:no\n",
     "`client_column` must name .*, which are 'School:Passed'; got "
     ".* Say `separator` if the file has another"),
    ("table.csv.gz", b"School,Passed\n1,no\n", "table.csv.gz must be a whole table, .*gzip|zlib"),
    ("table.csv", b"School,Passed\n\xff,1\n", "In 'School': .*Write the file in UTF-8"),
    ("table.csv", "School,Sex\n1,1\n".encode("utf-16"), "looks like UTF-16: its header is not in"),
    ("table.csv", b"School,Passed,Sex,SES\n" + b"1,0.5,F,1\n2,1.5,F,\"\"\n" * 20,
     "'SES' must have a value(?s:.*)'Passed' must be of whole numbers or of text; got numbers"),
    ("table.csv", b"School,Passed,Sex,SES\n1,no,\xff,1\n1,no,F,2\n", "'Sex' .*; got binary. Write"),
]  # fmt: skip


def refused(message, kind=ValueError, **settings):
    with pytest.raises(kind, match=message) as raised:
        pfl.from_table(**DEFAULTS | settings)
    _, *faults = str(raised.value).splitlines()
    assert all(fault.startswith("- ") for fault in faults)


@pytest.mark.parametrize("row", TABLES, ids=lambda row: row[-1][:40])
def test_a_bad_column_is_refused(row, monkeypatch):
    columns, *settings, message = row
    settings = dict(*settings)
    if "most" in settings:
        preprocessing = "tf_pflego.data.tables.preprocessing._MOST_ONE_HOT"
        monkeypatch.setattr(preprocessing, settings.pop("most"))
    refused(message, table=pa.table(schools.columns() | columns), **settings)


@pytest.mark.parametrize("row", ARGUMENTS, ids=lambda row: row[-1][:40])
def test_a_bad_argument_is_refused(row):
    settings, *kind, message = row
    refused(message, *kind, **{"table": schools.table()} | settings)


@pytest.mark.parametrize(("name", "content", "message"), FILES)
def test_a_bad_file_is_refused(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(message, table=tmp_path / name)


def test_rows_that_follow_an_earlier_table_have_its_columns_and_are_prepared_as_its_rows():
    earlier = pfl.from_table(schools.table(), **DEFAULTS).preprocessing
    settings = {"feature_columns": None, "preprocessing": earlier}
    for name, column in (("Sex", np.arange(COUNT)), ("SES", ["high"] * COUNT)):
        table = schools.table(**{name: column})
        refused(f"the column '{name}' must be of ", table=table, **settings)
    for name, other in (
        ("feature_columns", ["SES", "Sex"]),
        ("category_columns", ["SES"]),
        ("text_columns", ["Sex"]),
        ("encoding", "codes"),
        ("missing", "mean"),
    ):
        message = f"`{name}` must be as in the earlier table, .*Leave out `{name}`"
        refused(message, table=schools.table(), **settings | {name: other})
    refused("which has the words", table=schools.table(), text_words=9, **settings)
    odd = {"preprocessing": dataclasses.replace(earlier, class_names=("no", "\x1b"))}
    refused(r"of the earlier table, no, \\x1b; row", table=schools.table(), **settings | odd)
    lacking = schools.table().drop("SES")
    refused("the earlier table, Sex, SES; it lacks 'SES'", table=lacking, **settings)
    gaps = schools.table(SES=[None, *schools.columns()["SES"][1:]])
    refused("or choose `missing='drop'`", table=gaps, **settings)
    clients = pfl.from_table(gaps, **DEFAULTS | settings | {"missing": "drop"})
    assert len(clients.train.examples) + len(clients.test.examples) == COUNT - 1
    assert clients.preprocessing == earlier


def test_what_is_small_on_the_disk_and_large_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limited_files, "_MOST_BYTES_MORE", 10_000)
    text = b"who,x,y\n" + b"a,1,1\n" * 10**6
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text, 9))
    with pytest.raises(ValueError, match=r"has more than 888400 bytes unpacked. Write it unc"):
        reading.read(tmp_path / "rows.csv.gz")
    with pytest.raises(ValueError, match=r"has more than 5000000 bytes unpacked.*`unpacked_mb`"):
        reading.read(tmp_path / "rows.csv.gz", unpacked_mb=5)
    assert len(reading.read(tmp_path / "rows.csv.gz", unpacked_mb=7)) == 10**6
    (tmp_path / "rows.csv").write_bytes(text)
    assert len(reading.read(tmp_path / "rows.csv")) == 10**6
    same = pa.table({"who": ["a"] * 10**6, "y": [1] * 10**6})
    parquet.write_table(same, tmp_path / "rows.parquet", compression="gzip")
    with pytest.raises(ValueError, match=r"has 1000000 rows of 2 columns, more than \d+ bytes"):
        reading.read(tmp_path / "rows.parquet")
    assert len(reading.read(tmp_path / "rows.parquet", unpacked_mb=16)) == 10**6
    (tmp_path / "wide.csv").write_text(",".join(map(str, range(100_001))))
    with pytest.raises(ValueError, match=r"it has 100001 columns; at most 100000 are read"):
        reading.read(tmp_path / "wide.csv")
    os.truncate(tmp_path / "rows.csv", 10**12)
    with pytest.raises(ValueError, match=r"it is sparse"):
        monkeypatch.setattr(limited_files, "_MOST_TIMES", 1)
        reading.read(tmp_path / "rows.csv")
