"""Tells the documentation of the API where the public names are; `mkdocs.yml` names this file.

`tf_pflego` imports each public name when it is first used, which a reader of its source cannot
follow. This extension of griffe, which reads the source, gives it the table of the names' homes.
"""

import ast

import griffe


class PublicNames(griffe.Extension):
    """Adds the names of the table `_HOME` to a package as aliases of what they stand for."""

    def on_package(self, *, pkg: griffe.Module, **unused) -> None:
        """Called when the package is loaded."""
        if "_HOME" not in pkg.members:
            return
        for name, home in ast.literal_eval(str(pkg["_HOME"].value)).items():
            module, _, attribute = home.partition(":")
            if name not in pkg.members:
                pkg.set_member(name, griffe.Alias(name, f"{module}.{attribute or name}"))
