"""Files of others, mutated at random, and the calls with which the package reads them."""

import contextlib
import functools
import io
import json
import pathlib
import random
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator

import pyarrow.csv
import pyarrow.parquet

import tf_pflego as pfl
from tf_pflego.devices.definition import Definition
from tf_pflego.models import networks
from tf_pflego.runs import earlier_run
from tf_pflego.runs.plan import Plan
from tf_pflego.simulation import checkpoint

CASES = 3000  # of each door
_DEEP = "[" * 10**5 + "]" * 10**5
_VALUE = re.compile(rb'(?<=[:,\[\s])("[^"]*"|[\w.+-]+|\[\]|\{\})(?=[,\]\}\s])')
_BYTES = b"", b"\n", b"\x1b[2J", b"\xff", b"\0", b"9" * 400, b'"<b id=attack>"'
_VALUES = (
    *(b"null", b"-1", b"0", b"0.5", b"1e400", b"NaN", b"true", b"[]", b"{}", b"[[]]", b'"../x"'),
    *(b"9" * 30, b'"\\u001b[2J"', b'"a\\nb"', b'"\\ud800"', _DEEP.encode(), *_BYTES),
)


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Returns a file with a few other values or bytes, also of the members of an archive."""
    if content[:2] == b"PK" and rng.random() < 0.8:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name, packed = rng.choice(sorted(members)), io.BytesIO()
        members[name] = mutated(members[name], rng)
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in members.items():
                archive.writestr(*member)
        return packed.getvalue()
    changed, is_text = bytearray(content), content.isascii() and rng.random() < 0.8
    for _ in range(rng.randint(1, 4)):
        if spots := [*_VALUE.finditer(changed)] if is_text else []:
            start, stop = rng.choice(spots).span()
            changed[start:stop] = rng.choice(_VALUES)
        else:  # The first bytes of an array decide more than the others.
            start = rng.randrange(min(len(changed) + 1, rng.choice((200, 2**30))))
            other = rng.choice((*_BYTES, rng.randbytes(1), rng.randbytes(4)))
            changed[start : start + len(other)] = other
    return bytes(changed)


def calls(door: str, directory: pathlib.Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name of each case of a door, and the call that reads the mutated file."""
    paths, read = _doors(directory)[door]
    good = {path: path.read_bytes() for path in sorted(paths)}

    def attempt(number):
        rng = random.Random(number)
        for path, content in good.items():
            path.write_bytes(content)
        path = rng.choice([*good])
        path.write_bytes(mutated(good[path], rng))
        for manifest in path.parent.glob("checkpoint-*.json"):
            with contextlib.suppress(ValueError, TypeError, KeyError, OSError, RecursionError):
                _sign(manifest)
        return read(path)

    for number in range(CASES):
        yield str(number), functools.partial(attempt, number)


def _doors(directory):
    """Returns the good files of each door, and the function that reads one of them."""
    rows = [f"s{k % 3},{k / 7},{'pqr'[k % 3]},{'ab'[k // 3 % 2]}\n" for k in range(30)]
    names = "table.csv", "columns.parquet", "body.keras", "definition.json", "run"
    table, columns, body, definition, run = (directory / name for name in names)
    table.write_text("".join(["who,x,z,y\n", *rows]), encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(table), columns)
    of_run = {"table": str(table), "client_column": "who", "label_column": "y", "network": "mlp"}
    of_run |= {"engine": "in_process", "clients_per_round": 2, "num_rounds": 2}
    pfl.run(pfl.RunConfig(**of_run, output_dir=str(run)))
    config, later = pfl.RunConfig(**of_run), pfl.RunConfig(**of_run, start_from=str(run))
    simulation, read_table = pfl.build_simulation(config), pfl.from_table
    Definition.of(Plan.of(config, clients=read_table(table, "who", "y"))).save(definition)
    pfl.mlp((8, 8, 1), seed=0, units=5).save(body)
    plan = Plan.of(later)

    def start(path):
        earlier_run.refuse_another(plan)
        prepared = earlier_run.Beginning.of(later, None).preprocessing
        read_table(table, "who", "y", preprocessing=prepared)
        earlier_run.take_over(simulation, str(run))

    def read_run(path):
        with pfl.load_run(run) as stored:
            return repr(stored), stored.metrics, stored.partition, stored.client_model(0)

    in_run, checkpoints = [*run.rglob("*.*")], [*(run / "checkpoints").iterdir()]
    return {
        "tables": ([table, columns], lambda path: read_table(path, "who", "y")),
        "keras": ([body], lambda path: networks.build(str(path), (8, 8, 1), 0)),
        "partitions": ([run / "partition.npz"], pfl.Partition.load),
        "checkpoints": (checkpoints, lambda path: simulation.restore(path.parent)),
        "runs": (in_run, read_run),
        "start_from": (in_run, start),
        "definitions": ([definition], Definition.load),
    }


def _sign(manifest):
    """Makes the checksums of a checkpoint fit its files."""
    content = json.loads(manifest.read_bytes())["content"]
    for entry in [content["server"], *content["clients"]]:
        held = (manifest.parent / entry["file"]).read_bytes()
        entry |= {"bytes": len(held), "crc32": zlib.crc32(held)}
    manifest.write_text(json.dumps({"crc32": checkpoint._crc32(content), "content": content}))
