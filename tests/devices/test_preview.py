"""What a client says that it will send."""

import re

import pytest

from tests.devices.federation import Site, clients_like, config_of
from tf_pflego.devices import preview
from tf_pflego.devices.definition import Definition


@pytest.mark.parametrize(
    ("method", "uploads"),
    [
        ("pflego", "dense/bias [200] (for a sum)"),
        ("ditto", "dense/bias [200], head [2, 201] (for a mean)"),
        ("pgfed", "0/gradient/head [2, 201], 0/offset [] and 1 more (as it is)"),
    ],
)
def test_it_is_said_of_uploads_of_every_kind(method, uploads, tmp_path):
    definition = Definition.of(config_of(algorithm=method), {}, clients_like())
    lines = preview.promised(Site(definition, 0, tmp_path).resident, definition)
    (line,) = [line for line in lines if "it sends" in line]
    sent = re.sub(r"body/(mlp/)?dense(_\d+)?", "body/dense", line)
    assert "bytes: body/dense/kernel [3, 200], body/" in sent
    assert uploads in sent
    assert "who sees what is sent can find some of them" in lines[-1]
