"""Bad command lines with what is said of each, and the remedy."""

import dataclasses

from tf_pflego.algorithms import REGISTRY
from tf_pflego.core.settings import kind_of
from tf_pflego.runs.config import RunConfig

INT_LIMIT, FLOAT_LIMIT, SEED_LIMIT = "1000000000", "1e+18", str(2**63 - 1)
HUGE = str(10**30)
# Each setting of runs and methods, with a method that has it.
SETTINGS = {field.name: (field, "pflego") for field in dataclasses.fields(RunConfig)}
for method, (config, _) in REGISTRY.items():
    SETTINGS = {field.name: (field, method) for field in dataclasses.fields(config)} | SETTINGS


def out_of_range(field):
    """Yields values that a setting does not take, and what is said of each and as the remedy."""
    for limit, number in field.metadata["limits"].items():
        step = {"at_least": -1, "at_most": 1}.get(limit, 0)
        remedy = "Raise" if limit in ("at_least", "above") else "Lower"
        yield number + step, f"must be {limit.replace('_', ' ')} {number}; got", remedy
    if field.metadata["choices"]:
        yield "nothing", f"must be one of {', '.join(field.metadata['taken'])}; got", "Correct"


def unlike(field):
    """A flag that gives a setting another value than its default."""
    if kind_of(field) is bool:
        return f"--{field.name}"
    if field.metadata["choices"]:
        return f"--{field.name}={field.metadata['choices'][-1]}"
    if field.metadata["words"]:
        return f"--{field.name}=0.5"
    if kind_of(field) is str:
        return f"--{field.name}=x"
    return (
        f"--{field.name}={field.default + 1 if kind_of(field) is int else field.default / 2 or 1}"
    )


def unread(field):
    """Yields what is said of a setting that nothing reads beside the defaults of the others."""
    for needed in field.metadata["read_with"]:
        others = {name: SETTINGS[name][0] for name in needed}
        if (
            not any(
                other.default in (needed[name] or ())
                or (name, other.default) == ("partition", "auto")
                for name, other in others.items()
            )
            and "engine" not in needed
        ):
            name = next(iter(needed))
            yield f"--{name} is {' or '.join(map(str, needed[name] or ()))}"


CLUSTER = ["--engine=ray", "--ray_address=auto"]
OF_TABLE = ["--table={tmp}/pupils.csv", "--client_column=school", "--label_column=passed"]

ROWS = [
    *(
        ([f"--algorithm={method}", f"--{name}={value}"], f"--{name} {said} ", f"{remedy} --{name}")
        for name, (field, method) in SETTINGS.items()
        for value, said, remedy in out_of_range(field)
    ),
    # Whole numbers.
    (["--algorithm=fedrep", f"--body_steps={HUGE}"], f"at most {INT_LIMIT}; got", "Lower"),
    (["--algorithm=fedrep", "--body_steps=1.5"], "a whole number; got '1.5'", "Correct"),
    (["--num_rounds"], "--num_rounds must have a value; got none", "Write --num_rounds=VALUE"),
    (["--num_rounds=" + 5000 * "9"], "--num_rounds must be a whole number; got '9999", "Correct"),
    ([f"--seed={2**63}"], f"--seed must be at most {SEED_LIMIT}; got {2**63}", "Lower --seed"),
    # Numbers.
    (["--algorithm=pfedme", "--envelope_weight=1e-60"], "at least 1.2e-38 in size", "Raise"),
    (["--server_learning_rate=1e300"], f"at most {FLOAT_LIMIT}; got 1e+300", "Lower --server_l"),
    (["--client_learning_rate=inf"], "a finite number or auto; got inf", "Correct --client_lear"),
    (["--algorithm=fedper", "--client_learning_rate=auto"], "a finite number; got 'auto'", "Corr"),
    (["--head_solver=adam", "--client_learning_rate=auto"], "a number for Adam", "Try --client_"),
    # Choices and truth values.
    (["--algorithm=sgd"], "--algorithm must be one of pflego, ", "got 'sgd'. Correct --algorithm"),
    (["--algorithm=pflgo"], "got 'pflgo'. Did you mean pflego?", "Correct --algorithm"),
    (["--dataset=mnits"], "got 'mnits'. Did you mean mnist?", "Correct --dataset"),
    (["--server_schedule=cosine", "--schedule_rounds=5", "--num_rounds=6"], "--schedule_rounds "
     "must be 0 or at least the 6 rounds of the run", "Raise --schedule_rounds"),
    (["--download=maybe"], "--download must be true or false; got 'maybe'", "Correct --download"),
    (["--noresume=1"], "--noresume must have no value; got '1'", "Leave out the value"),
    # Flags that there are not.
    (["--learning_rate=1"], "must be one of those that --help lists; got --learning_rate", "leave"),
    (["--num_round=3"], "got --num_round", "Did you mean --num_rounds?"),
    (["train", "x"], "expected flags only; got 'x'", "Write flags as --name=value"),
    # Flag files.
    (["--flagfile="], "--flagfile must be a file of text that can be read; got ''", "Correct the"),
    (["--flagfile", "nowhere"], "got 'nowhere' ([Errno 2] No such file", "Correct the path"),
    (["--flagfile={tmp}"], "got '{tmp}' (is no regular file)", "Correct the path"),
    (["--flagfile={tmp}/binary"], "got '{tmp}/binary' ('utf-8' codec", "Correct the path"),
    (["--flagfile={tmp}/itself"], "got '{tmp}/itself' (it includes itself)", "Correct the path"),
    (["--flagfile=a\0b"], "must be a file of text that can be read; got 'a\\x00b' (", "Correct"),
    (["--flagfile={tmp}/zero"], "got '{tmp}/zero' (it is no text)", "Correct the path"),
    (["--flagfile={tmp}/wide0"], "(it is one of more than 100 files; include fewer)", "Correct"),
    (["--flagfile={tmp}/open"], "(in line 2 a quote is not closed, or nothing follows", "the file"),
    (["--flagfile={tmp}/unknown"], "got --nonsense", "Correct it or leave"),
    (["--flagfile={tmp}/lost"], "got '{tmp}/none' ([Errno 2] No such file", "Correct the path"),
    # Places.
    (["--output_dir=~nosuchuser/x"], "--output_dir must be a path whose user is known", "Write"),
    (["--output_dir=gs://bucket/x"], "must be a path of this machine; got 'gs://", "Copy the"),
    (["--output_dir=a\ud800"], "--output_dir must be a path of characters that", "Correct --out"),
    (["--output_dir=a\0b"], "--output_dir must be a path of characters that the", "Correct --out"),
    (["--output_dir=/proc/run"], "--output_dir must be a directory that can be", "Choose another"),
    (["--output_dir={tmp}/words/in"], "a directory that can be written; {tmp}/", "Choose another"),
    (["--output_dir={tmp}/" + 300 * "x"], "a directory that can be written", "Choose another"),
    (["--output_dir={tmp}/held"], "another run; {tmp}/held has config.json", "--overwrite"),
    (["--output_dir={tmp}/held", "--resume"], "config.json is damaged, and there is no checkpoint",
     "Start again with --overwrite"),
    (["--resume"], "must be given with --output_dir; got no output_dir", "Correct --resume"),
    (["--resume", "--overwrite", "--output_dir={tmp}/x"], "without --overwrite; got", "Correct"),
    (["--dataset=mnist", "--data_dir={tmp}/no"], "mnist is not in {tmp}/no", "with --download"),
    # Numbers that Python would take.
    *(
        ([f"--{name}={text}"], f"--{name} must be {expected}; got {text!r}", f"Correct --{name}")
        for name, expected, texts in (
            ("num_rounds", "a whole number", ("0x10", "0o17", "1_0", " 3", "3 ", "\u0663", "1e2")),
            ("dirichlet_alpha", "a number", ("0x10", "1_0.5", " 0.5", "\u0663", "1e1_0")),
            ("client_learning_rate", "a number or auto", ("1_0", " 1", "\u0663")),
        )
        for text in texts
    ),
    # A Ray cluster.
    (["--engine=ray", "--ray_address=10.0.0.1"], "--ray_address must be HOST:PORT, auto or empty; "
     "got '10.0.0.1'", "e.g. --ray_address=10.0.0.1:6379"),
    ([*CLUSTER, "--cpus_per_shard=1.5"], "a whole number, or a part", "Correct --cpus_per"),
    ([*CLUSTER, "--gpus_per_shard=0.00001"], "0.0001 on; got 1e-05", "Correct --gpus_per"),
    (["--compression=quantized:17"], "--compression must be at most 16; got 17", "Lower --compr"),
    (["--attack=noise:some"], "--attack must be a finite number; got 'some'", "Correct --attack"),
    (["--robust_sum=median:0.1"], "--robust_sum must be one of median; got 'median:0.1'", "Did"),
    # A table.
    (["--table={tmp}/pupils.csv"], "--client_column must name a column of the table", "Give it"),
    (["--client_column=school"], "--label_column must name a column of the table", "Give it"),
    ([*OF_TABLE, "--dataset=mnist"], "must not be given with --table; got mnist", "Give one"),
    ([*OF_TABLE, "--partition=groups"], "--partition must not be given with --client_co", "Leave"),
    # What nothing reads; on the command line a default that is given is refused too.
    *(
        ([f"--algorithm={method}", unlike(field)],
         f"--{field.name} must not be given unless {said}", "since nothing reads it; got ")
        for field, method in SETTINGS.values()
        for said in unread(field)
    ),
    (["--personalization=high", "--classes_per_client=3"], "--personalization must not be given "
     "unless --classes_per_client is 0", "got high. Leave it out, or correct --classes_per"),
    (["--dp_mechanism=gaussian"], "--dp_mechanism must not be given unless --dp_epsilon is above 0 "
     "or --dp_noise_multiplier is above 0", "got gaussian. Leave it out, or correct --dp_epsilon"),
    (["--partition=dirichlet", "--personalization=no"], "unless --partition is round_robin", "out"),
    (["--algorithm=pflego_shared_head", "--correction=none", "--penalty_growth=1"],
     "unless --correction is learnt", "Leave it out, or correct --correction"),
    # What contradicts itself.
    (["--participation=range", "--clients_per_round_range=4"], "two whole numbers, least,most; "
     "got '4'", "Set e.g. --clients_per_round_range=4,28"),
    (["--participation=range", "--clients_per_round_range=1,\u00b2"], "two whole numbers", "Set"),
]  # fmt: skip

# These load the digits before they are refused.
WITH_DATA = [
    (["--num_clients=360"], "must be at most 359, the number of test examples", "Lower"),
    (["--classes_per_client=11"], "must be in [1, 10]", "Lower --classes_per_client"),
    (["--output_dir={tmp}/held", "--overwrite", "--clients_per_round=101"],
     "in [1, num_clients=100]; got 101", "Lower --clients_per_round"),
    (["--participation=range", "--clients_per_round_range=9,5"], "least <= most", "Set --clients"),
    (["--num_new_clients=100"], "must be fewer than the 100 clients; got 100",
     "Lower --num_new_clients"),
    (["--partition=dirichlet", "--min_examples=500"], "must be at most 17", "Lower --min_examples"),
    (["--permuted_fraction=0.001"], "--permuted_fraction must be 0 or a share that is at least one "
     "of the 100 clients", "Raise --permuted_fraction"),
    (["--network=omniglot_cnn"], "omniglot_cnn needs larger images", "Choose --network=mlp"),
]  # fmt: skip

# These read a table before they are refused.
WITH_TABLE = [
    (["--client_column=shool"], "--client_column must name columns of the table, which are "
     "'school', 'passed', 'age'; got 'shool'", "Did you mean school? Correct --client_column"),
    (["--feature_columns=age,school"], "--client_column, --label_column, --feature_columns and "
     "--split must be different columns", "got 'school' twice"),
    (["--split=last"], "--time_column must name columns of the table", "got None"),
    (["--min_rows=3"], "every client must have 3 rows or more; 1 of 2 clients have not, the first "
     "is 'south' with 2", "Choose another --on_small_client"),
    ([], "the column 'age' must have a value in every row; 1 of 6 have none, the first is row 1",
     "choose --missing=mean or --missing=drop"),
    (["--missing=refuse", "--feature_columns=age,sex"], "2 faults must be mended", "- --featu"),
    (["--table={tmp}/none.csv"], "--table must be a file of rows; {tmp}/none.csv does not exist",
     "Correct the path"),
    (["--missing=mean", "--clients_per_round=3"], "must be in [1, num_clients=2]; got 3", "Lower"),
]  # fmt: skip
