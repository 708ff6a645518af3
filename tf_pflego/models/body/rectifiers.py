"""ReLUs of products that keep NaN on every engine.

TensorFlow's graph optimiser joins a product, its bias and the ReLU that follows into one operation,
which converts NaN to 0, unlike the operation ReLU. The worker of TensorFlow Federated does not join
them. A client with overflowing numbers would therefore have NaN as its features there, and 0 in
process, without a sign that they are meaningless.

As the maximum of its input and 0 a ReLU is not joined, keeps NaN, and computes the same bits
otherwise. This costs another pass over the results. With a product the cost is too small to
measure, and with a convolution it is about 5 % of a round. There the operations stay joined: a NaN
that first arises in a convolution may become 0 in process. If its inputs were infinite, the
gradient of a trained kernel is still NaN. A frozen kernel has none, and its client participates.
"""

import tensorflow as tf

from tf_pflego.models.body import graphs

_SUMS = ("BiasAdd", "Add", "AddV2")


def keep_nan(graph_def) -> None:
    """Turns each ReLU that follows no convolution into a maximum with 0; nodes keep their names."""
    _replace(graph_def.node, zero_output="")
    for function in graph_def.library.function:
        replaced = _replace(function.node_def, zero_output=":output:0")
        renamed = {f"{name}:activations:0": f"{name}:z:0" for name in replaced}
        graphs.rename_tensors(function, renamed)


def _replace(nodes, zero_output):
    """Replaces ReLUs among the nodes of a graph or of a function, and returns their names."""
    by_name = {node.name: node for node in nodes}
    relus = [node for node in nodes if node.op == "Relu"]
    chosen = [node for node in relus if not _follows_convolution(node, by_name)]
    for node in chosen:
        dtype = tf.as_dtype(node.attr["T"].type)
        zero = nodes.add(name=f"{node.name}/zero", op="Const")
        zero.attr["dtype"].type = dtype.as_datatype_enum
        zero.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, dtype))
        node.op = "Maximum"
        node.input.insert(1, f"{zero.name}{zero_output}")
    return [node.name for node in chosen]


def _follows_convolution(node, by_name):
    """Returns whether a node takes the results of a convolution, or their sums with others."""
    waiting = graphs.data_inputs(node)
    while waiting:
        source = by_name.get(graphs.node_of(waiting.pop()))
        if source is not None and "Conv" in source.op:
            return True
        if source is not None and source.op in _SUMS:
            waiting += graphs.data_inputs(source)
    return False
