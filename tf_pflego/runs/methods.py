"""The method and the network of a stored run. The user names their code to load it."""

import pathlib
from collections.abc import Mapping
from typing import Any

from tf_pflego import algorithms
from tf_pflego.algorithms import Method, Named
from tf_pflego.models import networks
from tf_pflego.runs.plan import NETWORK_DIGEST, SOURCE, is_own
from tf_pflego.runs.resumption import RunDirectoryError


def method_of_stored(
    configuration: Mapping[str, Any], algorithm: Named | None, path: pathlib.Path
) -> Method:
    """Returns the method of a run. Code is loaded only from a file that the user names."""
    name = configuration["algorithm"]
    if not is_own(configuration):
        if algorithm is not None:
            raise RunDirectoryError(
                f"`algorithm` must not be given for the run in {path}, since its method {name} is "
                "of the package. Leave it out."
            )
        return algorithms.method_of(name)
    if algorithm is None:
        raise RunDirectoryError(
            f"`algorithm` must be given for the run in {path}, with your own method ({name}): no "
            "code is loaded by its name in a directory. Give its file, as in "
            f"`algorithm='{name}'`, or in Python its builder."
        )
    method = algorithms.method_of(algorithm)
    if not method.is_own or method.checksum() != configuration.get(SOURCE):
        raise RunDirectoryError(
            f"`algorithm` must be the method of the run in {path}, {name}, as it was then; the "
            f"source of {method.name} is another. Give it as it was, or make the run again."
        )
    return method


def network_of_stored(
    configuration: Mapping[str, Any], network: str | None, path: pathlib.Path
) -> str:
    """Returns the network of a run. A file is loaded only if the user names it."""
    name = configuration["network"]
    if not networks.is_file(name):
        if network is not None:
            raise RunDirectoryError(
                f"`network` must not be given for the run in {path}, since its network {name} is "
                "no file. Leave it out."
            )
        return name
    if network is None:
        raise RunDirectoryError(
            f"`network` must be given for the run in {path}, with your own network file ({name}): "
            f"no file is loaded by its name in a directory. Give `network='{name}'`, or its "
            "present path."
        )
    if networks.digest(network) != configuration.get(NETWORK_DIGEST):
        raise RunDirectoryError(
            f"`network` must be the file of the run in {path}, {name}, as it was then; {network} "
            "has another content. Give it as it was, or make the run again."
        )
    return network
