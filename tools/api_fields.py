"""Tells the documentation of the API what fields are; `mkdocs.yml` names this file.

griffe reads the source, and this is an extension of it:

* The default of a field that `setting` makes is the setting's default, not the call.
* The comment beside a field is its description.
* The page that explains an example is a link below it.
"""

import re

import griffe

_COMMENT = re.compile(r"  # (.+)$")
_EXPLAINED = re.compile(r"Example, explained in docs/(\S+)\.md(\S*):(\n.*)", re.DOTALL)


class Fields(griffe.Extension):
    """Describes the attributes of classes, and links examples to their pages."""

    def on_object(self, *, obj: griffe.Object, **unused) -> None:
        """Called when an object has been read."""
        if obj.docstring:
            objects = "[objects of all examples](index.md#the-objects-of-the-examples)"
            linked = rf"Examples:\3\n\n[Guide](../\1.md\2), {objects}"
            obj.docstring.value = _EXPLAINED.sub(linked, obj.docstring.value)

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
