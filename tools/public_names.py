"""Tells the documentation of the API what source does not say; `mkdocs.yml` names this file.

griffe reads the source, and this is an extension of it. `tf_pflego` imports each public name when
it is first used, which a reader of source cannot follow: here are the names' homes. And the default
of a field that `setting` makes is the setting's default, not the call; and the comment beside a
field is its description.
"""

import ast
import re

import griffe

_COMMENT = re.compile(r"  # (.+)$")


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

    def on_attribute_instance(self, *, attr: griffe.Attribute, **unused) -> None:
        """Called when an attribute of a class or module has been read."""
        comment = _COMMENT.search(attr.source)
        if attr.docstring is None and comment and attr.parent.is_class:
            attr.docstring = griffe.Docstring(comment[1], parent=attr)
        call = attr.value
        if not isinstance(call, griffe.ExprCall):
            return
        maker = str(call.function).rpartition(".")[2]
        if maker == "setting":
            attr.value = call.arguments[0]
        elif str(call.function).startswith("settings."):
            attr.value = "..."  # One of those that methods share; their tables have the values.
