"""Rows of a new table are predicted by their clients' models, as NumPy does from what is stored."""

import csv
import functools

import numpy as np
import pytest

import tf_pflego as pfl
from tests.data.tables import schools
from tests.methods import each_of
from tests.oracles import network
from tests.starts import done, in_this_process, replaced

pytestmark = pytest.mark.usefixtures("traced_once")
FEATURES = ("Sex", "SES")
NEW = "77"  # A school that the run does not have.
LABELS = {
    "classification": ("Passed",),
    "multi_label": ("early", "sure"),
    "regression": ("MathAch",),
    "counts": ("days", "visits"),
}


def pupils():
    """A table with a school in which all have passed."""
    columns = schools.columns()
    columns["Passed"][columns["School"] == 1288] = "yes"
    rng = np.random.default_rng(1)
    whole = {name: rng.integers(0, 2, 45) for name in LABELS["multi_label"]}
    return columns | whole | {name: rng.poisson(3, 45) for name in LABELS["counts"]}


def new_rows(path, **changed):
    """Writes rows of known schools and a new one: no labels, another order of the columns."""
    columns = {
        "SES": [0.25, -1.5, 2.0, 0.0, 1.0, -0.5],
        "remark": ["a", "b", "c", "d", "e", "f"],
        "School": ["1288", NEW, "1224", "1288", "1308", NEW],
        "Sex": ["Female", "Male", "Male", "Neither", "Female", "Female"],
    } | changed
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    return columns


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function of a task that returns the directory of a run, of all tasks on one table."""
    place = tmp_path_factory.mktemp("predict")
    table = schools.written(place / "pupils.csv", pupils())

    @functools.cache
    def trained(task):
        config = pfl.RunConfig(
            table=str(table), client_column="School", label_column=",".join(LABELS[task]),
            feature_columns=",".join(FEATURES), task=task, engine="in_process", num_rounds=2,
            clients_per_round=3, output_dir=place / task,
        )  # fmt: skip
        pfl.run(config, local_steps=3)
        return place / task

    return trained


def refused_with(result, *expected):
    """Asserts a refusal, before which the run may say what it predicts from what."""
    assert (result.returncode, result.stdout) == (2, "")
    *_, said = result.stderr.splitlines()
    assert all(part in said for part in expected), said


def examples_of(columns, run):
    """Returns [n, 3] float64: what was said of sexes as ones, and the status standardised."""
    ours = pupils()
    rows = np.sort(np.concatenate(run.partition.train_indices))
    status = ours["SES"][rows]
    sexes = [[sex == one for one in ("Female", "Male")] for sex in columns["Sex"]]
    scaled = (np.array(columns["SES"], float) - status.mean()) / status.std()
    return np.column_stack([np.array(sexes, float), scaled])


def predicted_by(weights, examples, task):
    theta, head = [np.array(one, np.float64) for one in weights.theta], np.array(weights.head)
    *_, logits = network.forward(theta, head.astype(np.float64), examples)
    if task == "classification":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)
    return {"multi_label": lambda z: 1 / (1 + np.exp(-z)), "counts": np.exp}.get(task, lambda z: z)(
        logits
    )


def expected_of(columns, run, simulation, task):
    """Returns the predictions [n, outputs] by NumPy; the new school is that without examples."""
    names = simulation.data.client_names
    schools_of_rows = columns["School"]
    rows = pupils() | {"School": np.full(45, int(NEW))}
    arguments = {"preprocessing": simulation.data.preprocessing, "task": task}
    new = pfl.from_table(rows, "School", LABELS[task], **arguments)
    rate = 0.1 if task == "counts" else "auto"
    (one,) = pfl.NewClients(simulation, new, steps=0, learning_rate=rate).learnt()
    expected = np.full((len(schools_of_rows), simulation.data.num_global_classes), np.nan)
    examples = examples_of(columns, run)
    for row, school in enumerate(schools_of_rows):
        weights, outputs = one.weights, np.arange(expected.shape[1])
        if school != NEW:
            number = names.index(school)
            weights = simulation.served_weights(number)
            if task == "classification":
                outputs = simulation.data.classes[number]
        weights = weights._replace(head=np.array(weights.head)[: len(outputs)])
        found = predicted_by(weights, examples[row : row + 1], task)[0]
        if simulation.algorithm.model.task.mean:
            about = simulation.algorithm.model.task
            found = found * np.array(about.deviation) + np.array(about.mean)
        expected[row, outputs] = found
    return expected


@pytest.mark.parametrize("task", each_of(LABELS, ("classification",)))
def test_the_numbers_are_numpys(task, runs, tmp_path, capsys):
    columns = new_rows(tmp_path / "new.csv")
    output = tmp_path / "made" / "predictions.csv"
    flags = [f"--run={runs(task)}", f"--table={tmp_path / 'new.csv'}", f"--output={output}"]
    said = done(["predict", *flags], capsys).stdout
    assert said.splitlines() == [
        f"6 rows predicted, 2 of them of 1 client that the run does not have; written to {output}"
    ]
    with open(output, newline="") as file:
        written = list(csv.DictReader(file))
    with pfl.load_run(runs(task)) as run, run.simulation() as simulation:
        in_python = run.predict({name: np.array(cells) for name, cells in columns.items()})
        expected = expected_of(columns, run, simulation, task)
        tested, data = simulation.predict("test"), simulation.data
    assert list(in_python) == list(written[0])
    assert [row["row"] for row in written] == list("012345")
    assert [row["client"] for row in written] == columns["School"]
    assert [row["known"] for row in written] == list("101110")
    names, is_share = LABELS[task], task in ("classification", "multi_label")
    names = ("no", "yes") if task == "classification" else names
    for k, name in enumerate(names):
        heads = [f"probability_{name}", f"prediction_{name}", "prediction"]
        head = heads[0 if is_share else 1 if len(names) > 1 else 2]
        numbers = np.array([float(row[head] or "nan") for row in written])
        np.testing.assert_allclose(numbers, expected[:, k], rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(numbers.astype(np.float32), in_python[head])
        if is_share:
            continue
        errors = [row[head.replace("prediction", "test_error")] for row in written]
        for school, error in zip(columns["School"], errors, strict=True):
            if school == NEW:
                assert error == ""
                continue
            client = data.client_names.index(school)
            missed = tested[client][:, k].astype(float) - data.test.of(client)[1][:, k]
            assert float(error) == pytest.approx(np.sqrt(np.mean(missed**2)), rel=1e-6)
    if task == "classification":
        likely = np.array(names)[np.nanargmax(expected, axis=1)]
        assert [row["prediction"] for row in written] == likely.tolist()
        assert written[0]["probability_no"] == ""  # Nobody of this school has failed.


@pytest.mark.thorough
@pytest.mark.parametrize("task", each_of(LABELS, ("classification",)))
def test_a_bundle_predicts_as_its_run(task, runs, tmp_path, capsys):
    new_rows(tmp_path / "new.csv", SES=[0.25, "", 2.0, 0.0, 1.0, -0.5])
    bundle, tables = tmp_path / "bundle", {}
    run = f"--run={runs(task)}"
    done(["export", run, "--format=bundle", "--clients=all", f"--output_dir={bundle}"], capsys)
    for source in (run, f"--bundle={bundle}"):
        output = tmp_path / f"{source[2:5]}.csv"
        flags = [source, f"--table={tmp_path}/new.csv", f"--output={output}", "--missing=mean"]
        said = done(["predict", *flags], capsys).stdout
        assert said.startswith("6 rows predicted, 2 of them of 1 client that the ")
        with open(output, newline="") as file:
            tables[source] = list(csv.DictReader(file))
    for of_run, of_bundle in zip(*tables.values(), strict=True):
        of_run = {k: cell for k, cell in of_run.items() if not k.startswith("test_error")}
        assert [*of_run] == [*of_bundle]
        for name, cell in of_run.items():
            got = of_bundle[name]
            try:
                assert float(got) == pytest.approx(float(cell), rel=1e-4)
            except ValueError:
                assert got == cell


def test_labels_and_gaps(runs, tmp_path, capsys):
    """Labels are not read, and rows with gaps are left out, filled or refused."""
    output, place = tmp_path / "out.csv", tmp_path / "new.csv"
    predict = ["predict", f"--run={runs('classification')}", f"--table={place}"]
    predict.append(f"--output={output}")
    new_rows(place, Passed=["perhaps"] * 6)
    done(predict, capsys)
    before = output.read_text()
    refused_with(in_this_process(predict, capsys), "--output must be a new file", "--overwrite")
    refused_with(
        in_this_process([*predict[:3], f"--output={place}", "--overwrite"], capsys),
        "--overwrite must be given for earlier predictions only",
    )
    new_rows(place, SES=[0.25, -1.5, "", 0.0, 1.0, -0.5])
    refused = in_this_process([*predict, "--overwrite"], capsys)
    refused_with(refused, "the column 'SES' must have a value in every row; 1 of 6", "is row 2")
    assert output.read_text() == before
    done([*predict, "--overwrite", "--missing=drop"], capsys)
    rows = before.splitlines()
    assert output.read_text().splitlines() == rows[:3] + rows[4:]
    done([*predict, "--overwrite", "--missing=mean"], capsys)
    filled = output.read_text().splitlines()
    assert filled[:3] + filled[4:] == rows[:3] + rows[4:]
    assert filled[3] != rows[3]


@pytest.mark.parametrize(
    ("changed", "flags", "expected"),
    [
        ({"Sex": None}, [], "it lacks 'Sex'. Give it this column"),
        ({"School": None}, [], "it lacks 'School'"),
        ({"SES": [1, 2, "three", 4, 5, 6]}, [], "must be of numbers; got text, such as 'three'"),
        ({"School": ["", *"12345"]}, [], "the column 'School' must have a value in every row"),
        ({}, ["--table={tmp}/none.csv"], "none.csv does not exist"),
        ({}, ["--run={tmp}"], "--run must be the output directory of a run"),
        ({}, ["--bundle={tmp}"], "--run must not be given with --bundle"),
        ({}, ["--run=", "--bundle={tmp}"], "--bundle must be the directory"),
    ],
)
def test_what_cannot_be_predicted_is_refused(changed, flags, expected, runs, tmp_path, capsys):
    columns = new_rows(tmp_path / "new.csv")
    kept = {name: cells for name, cells in (columns | changed).items() if cells is not None}
    with open(tmp_path / "new.csv", "w", newline="") as file:
        csv.writer(file).writerows([kept, *zip(*kept.values(), strict=True)])
    given = [f"--run={runs('classification')}", "--table={tmp}/new.csv", "--output={tmp}/o.csv"]
    arguments = ["predict", *(one.format(tmp=tmp_path) for one in replaced(*given, *flags))]
    refused_with(in_this_process(arguments, capsys), expected)
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


def test_a_new_client_needs_a_head_with_all_classes(runs):
    """Where each client's head has its own classes, nothing says which those of a new one are."""
    columns = pupils()
    columns["Passed"] = np.where(columns["School"] > 1288, "well", columns["Passed"])
    few = np.where(columns["School"] == 1288, "yes", columns["Passed"])
    clients = pfl.from_table(columns | {"Passed": few}, "School", "Passed", FEATURES)
    assert max(clients.num_classes) < clients.num_global_classes
    config = pfl.RunConfig(engine="in_process", num_rounds=1, clients_per_round=2)
    with pfl.build_simulation(config, clients=clients) as simulation:
        rows = {"School": [1296, 1224], "SES": [0.0, 1.0], "Sex": ["Male", "Female"]}
        found = simulation.predict(rows)
        assert found["prediction"][0] == "well"
        assert np.isnan(found["probability_well"]).tolist() == [False, True]
        with pytest.raises(ValueError, match="client '5' must be one of the run, since its heads"):
            simulation.predict(rows | {"School": [1296, 5]})
        with pytest.raises(ValueError, match="`client_ids` must not be given with a table"):
            simulation.predict(rows, client_ids=[0])
        with pytest.raises(ValueError, match="`missing` must not be given for a split"):
            simulation.predict("test", missing="drop")


def test_frames_of_pandas(runs, tmp_path):
    """Also of pandas 3, which has a type of its own for text, with gaps in it."""
    pandas = pytest.importorskip("pandas")
    columns = new_rows(tmp_path / "new.csv")
    frame = pandas.DataFrame(columns)
    typed = frame.convert_dtypes()
    gaps = frame.assign(Sex=frame["Sex"].mask(frame["Sex"] == "Neither"))
    with pfl.load_run(runs("classification")) as run:
        expected = run.predict(columns)["probability_yes"]
        known = expected[np.array(columns["School"]) == "1224"]
        model = run.client_model("1224")
        for one in (frame, typed, frame.astype({"Sex": "category", "School": "category"})):
            np.testing.assert_array_equal(run.predict(one)["probability_yes"], expected)
            of_model = model.predict(one, verbose=0)[one["School"] == "1224"]
            np.testing.assert_allclose(of_model[:, 1], known, rtol=1e-5)
        filled = run.predict(gaps, missing="mean")["probability_yes"]
        np.testing.assert_array_equal(filled, expected)
        assert len(pandas.DataFrame(run.predict(frame))) == len(frame)
