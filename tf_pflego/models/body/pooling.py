"""The gradient of max pooling, always with the kernel of the oneDNN library where there is one.

TensorFlow has two kernels for it on a CPU; that of oneDNN is some ten times faster. TensorFlow
takes it only if it comes, in its order of the graph's nodes, to the pooling before the gradient.
In a loop, as local training is, the order depends on where it enters the loop, and differs from
process to process. In a function of their own, without a loop, the pooling always comes first. To
pool once more there takes little beside the convolutions.
"""

import tensorflow as tf


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
