"""The gradient of max pooling by the fastest kernel, with little work after it.

A window passes its gradient to one element, its largest. The gradients of the ReLU and of the bias
before the pooling can therefore be computed from the pooled values, which are several times
smaller.

The kernel is the oneDNN library's if there is one. TensorFlow has two kernels for it on a CPU, and
oneDNN's is some ten times faster. TensorFlow chooses it only if the pooling precedes the gradient
in its order of the graph's nodes. In a loop, such as local training, the order depends on the entry
into the loop, and differs from process to process. In a separate function, without a loop, the
pooling always comes first. The repeated pooling costs little compared with the convolutions.
"""

import collections

import tensorflow as tf

from tf_pflego.models.body import graphs


def _gradient(node):
    """Returns the FunctionDef of a gradient of max pooling, which pools once more before it."""
    dtype = tf.as_dtype(node.attr["T"].type)
    window = {
        "ksize": list(node.attr["ksize"].list.i),
        "strides": list(node.attr["strides"].list.i),
        "padding": node.attr["padding"].s.decode(),
        "explicit_paddings": list(node.attr["explicit_paddings"].list.i),
        "data_format": node.attr["data_format"].s.decode(),
    }

    @tf.function
    def pool_and_pull_back(x, pooled, gradient):
        pooled = tf.raw_ops.MaxPool(input=x, **window)
        return tf.raw_ops.MaxPoolGrad(orig_input=x, orig_output=pooled, grad=gradient, **window)

    image = tf.TensorSpec([None] * 4, dtype)
    definition = pool_and_pull_back.get_concrete_function(image, image, image).function_def
    definition.attr["_noinline"].b = True
    return definition


# By operation, what makes the function that takes the place of a node; see `graphs`.
BUILDERS = {"MaxPoolGrad": _gradient}


def pull_back_rectified(graph_def) -> None:
    """Takes gradients of a ReLU and of a bias before they pass back through max pooling, in place.

    An element that a window has chosen is above 0 if and only if the window's maximum is, so that
    a ReLU lets the same gradients through on either side, bit for bit. The gradient of a bias is
    their sum over all elements, which is the sum over all windows.
    """
    by_name = {node.name: node for node in graph_def.node}
    sources = [source for node in graph_def.node for source in graphs.data_inputs(node)]
    uses = collections.Counter(map(graphs.node_of, sources))

    def pooling_before(node):
        source = by_name.get(graphs.node_of(node.input[0]))
        return source if source is not None and source.op == "MaxPoolGrad" else None

    for node in graph_def.node:
        pooling = pooling_before(node) if node.op == "ReluGrad" else None
        if pooling is None or pooling.input[0] != node.input[1] or uses[pooling.name] > 1:
            continue
        image, pooled, gradient = pooling.input[:3]
        # They change places, so that what comes after goes on reading the same node.
        rectifier = tf.compat.v1.NodeDef(name=pooling.name, op="ReluGrad", attr=node.attr)
        rectifier.input.extend([gradient, pooled])
        node.op = pooling.op
        node.attr.clear()
        for name, value in pooling.attr.items():
            node.attr[name].CopyFrom(value)
        node.input[:] = [image, pooled, pooling.name]
        pooling.CopyFrom(rectifier)
    for node in graph_def.node:
        pooling = pooling_before(node) if node.op == "BiasAddGrad" else None
        if pooling is not None and pooling.attr["data_format"].s == node.attr["data_format"].s:
            node.input[0] = pooling.input[2]
