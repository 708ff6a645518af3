"""Traced graphs as data: their variables become constants, and parts of them are called.

Parts of TensorFlow that are not public are imported inside functions: at the head of the module
they would start TensorFlow at once, which the program defers until it needs it
(`tf_pflego.system.deferred`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

# Without variables, loops and calls have no effects; TensorFlow may prune and reorder them.
_STATELESS = {
    "While": "StatelessWhile",
    "If": "StatelessIf",
    "Case": "StatelessCase",
    "StatefulPartitionedCall": "PartitionedCall",
}
_unique_numbers = itertools.count()


def nodes_and_called(graph_def) -> Iterator[Any]:
    """Yields the nodes of a GraphDef and of the functions that it calls, however deep."""
    functions = {function.signature.name: function for function in graph_def.library.function}
    waiting = [graph_def.node]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting += [functions.pop(name).node_def for name in _called(node) & functions.keys()]


def definition_of(operation: str) -> Any:
    """Returns the OpDef of an operation, or None for an unknown name."""
    from tensorflow.python.framework import op_def_registry

    return op_def_registry.get(operation)


def freeze(traced: tf.types.experimental.ConcreteFunction):
    """Returns the GraphDef of a traced function, with constants in place of its variables.

    A constant has the name of the placeholder that had captured the variable. Function calls are
    inlined if TensorFlow supports it, and loops and conditionals remain functions.
    """
    from tensorflow.python.framework import convert_to_constants

    # The public `convert_variables_to_constants_v2` does this too. But then it removes from the
    # process the functions that it has replaced, which the user's model may still need.
    captured = convert_to_constants._FunctionConverterDataInEager(
        traced, lower_control_flow=False, aggressive_inlining=True
    )
    graph_def, _ = convert_to_constants._replace_variables_by_constants(captured)
    for node in nodes_and_called(graph_def):
        node.op = _STATELESS.get(node.op, node.op)
        node.attr.pop("_gradient_op_type", None)  # A Python function that knows the old graph.
        if "_lower_using_switch_merge" in node.attr:
            node.attr["_lower_using_switch_merge"].b = True
        if node.op == "VariableShape":  # It asks this of what has become a tensor.
            node.op = "Shape"
            node.attr["T"].type = tf.float32.as_datatype_enum
    return graph_def


def replace_by_calls(graph_def, builders: Mapping[str, Callable]) -> None:
    """Turns every node of some operations into a call of a function, in place.

    `builders` has for each operation a function from a node to the FunctionDef that replaces it.
    Nodes with the same attributes and numbers of inputs share a function.
    """
    functions: dict[str, Any] = {}
    for node in graph_def.node:
        _replace_by_call(node, builders, functions)
    for function in graph_def.library.function:
        renamed: dict[str, str] = {}
        for node in function.node_def:
            renamed |= _replace_by_call(node, builders, functions)
        rename_tensors(function, renamed)
    graph_def.library.function.extend(functions.values())


def rename_tensors(function, renamed: Mapping[str, str]) -> None:
    """Lets a FunctionDef, changed in place, read tensors by their new names."""
    for node in function.node_def:
        node.input[:] = [renamed.get(source, source) for source in node.input]
    for name, source in function.ret.items():
        function.ret[name] = renamed.get(source, source)


def _replace_by_call(node, builders, functions):
    """Makes a node a call of one of `functions`, and returns the new names of its outputs."""
    if node.op not in builders:
        return {}
    attributes = sorted((name, value.SerializeToString()) for name, value in node.attr.items())
    key = (node.op, len(data_inputs(node)), *attributes)
    if key not in functions:
        functions[key] = builders[node.op](node)
    old_outputs = [output.name for output in definition_of(node.op).output_arg]
    signature = functions[key].signature
    node.op = "PartitionedCall"
    node.attr.clear()
    node.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
    node.attr["Tout"].list.type.extend(argument.type for argument in signature.output_arg)
    node.attr["f"].func.name = signature.name
    names = enumerate(old_outputs)
    return {f"{node.name}:{name}:0": f"{node.name}:output:{k}" for k, name in names}


def register_functions(graph_def) -> None:
    """Renames all functions of a GraphDef, in place, and makes them known to the process.

    TensorFlow identifies functions by name. Under its old name it would find the traced function,
    and would forget it together with its origin. Under its new name it stays known until the
    process ends.
    """
    from tensorflow.python.eager import context

    suffix = f"_of_body_{next(_unique_numbers)}"
    names = {function.signature.name for function in graph_def.library.function}
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    for node in itertools.chain(*bodies):
        for reference in _references(node):
            reference.name += suffix
        if node.op in names:
            node.op += suffix
    for function in graph_def.library.function:
        function.signature.name += suffix
        # Importing a GraphDef into a tf.function does not do this.
        context.context().add_function_def(function)
    del graph_def.library.gradient[:]


def ancestors(graph_def, outputs: Sequence[str], known: Collection[str]) -> set[str]:
    """Returns the names of the nodes that `outputs` need where the nodes `known` are known."""
    nodes = {node.name: node for node in graph_def.node}
    needed, waiting = set(), [node_of(output) for output in outputs]
    while waiting:
        name = waiting.pop()
        if name not in needed and name not in known:
            needed.add(name)
            waiting += [node_of(source) for source in data_inputs(nodes[name])]
    return needed


def part(graph_def, names: Collection[str]):
    """Returns a GraphDef of the nodes `names` and of the functions that they call."""
    kept = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    kept.node.extend(node for node in graph_def.node if node.name in names)
    for node in kept.node:  # Nothing in the graph has an effect, so there is nothing to wait for.
        node.input[:] = data_inputs(node)
        node.attr.pop("_class", None)  # Asks for the device of a node that may not be here.
    called = set().union(*map(_called, nodes_and_called(kept)))
    del kept.library.function[:]
    library = graph_def.library.function
    kept.library.function.extend(f for f in library if f.signature.name in called)
    return kept


def call(graph_def, arguments: dict[str, tf.Tensor], outputs: Sequence[str]) -> list[tf.Tensor]:
    """Adds a GraphDef to the graph being built, and returns its tensors of the names `outputs`.

    `arguments` take the place of tensors of the GraphDef, by their names.
    """
    used = {full_name(source) for node in graph_def.node for source in data_inputs(node)}
    return tf.graph_util.import_graph_def(
        graph_def,
        input_map={name: tensor for name, tensor in arguments.items() if name in used},
        return_elements=list(outputs),
        name="body",
    )


def data_inputs(node) -> list[str]:
    """Returns the inputs of a node of a graph that carry a tensor, without control edges."""
    return [source for source in node.input if not source.startswith("^")]


def node_of(tensor: str) -> str:
    """Returns the name of the node that computes a tensor of a graph."""
    return tensor.split(":")[0]


def full_name(tensor: str) -> str:
    """Returns the name of a tensor with its number, which GraphDefs omit if it is 0."""
    return tensor if ":" in tensor else f"{tensor}:0"


def _references(node):
    """Returns the functions that attributes of a node name."""
    values = node.attr.values()
    single = [value.func for value in values if value.HasField("func")]
    return single + [reference for value in values for reference in value.list.func]


def _called(node):
    """Returns the names of the functions that a node calls, if there are such functions."""
    return {node.op, *(reference.name for reference in _references(node))}
