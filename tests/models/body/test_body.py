"""Any Keras model serves as a body, or is refused with the true reason and a remedy that works."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.conftest import make_clients
from tf_pflego import models
from tf_pflego.models.body import graphs, normalization
from tf_pflego.models.body.body import Body

# float32: the graph and the eager model add in another order.
TOLERANCE = 1e-5
# As above, after five rounds in two processes; weights of order 1.
ENGINE_TOLERANCE = 2e-6
TOKENS = 11

layers = tf.keras.layers


def sequential(shape, *then, dtype="float32"):
    return tf.keras.Sequential([tf.keras.Input(shape, dtype=dtype), *then])


def positive_weights(model):
    """Gives a model weights, and batch normalisations statistics, that are not 0 or 1."""
    rng = np.random.default_rng(0)
    weights = model.get_weights()
    model.set_weights([rng.uniform(0.1, 0.6, w.shape).astype(np.float32) for w in weights])
    return model


def convolutional_backbone(*then):
    return positive_weights(
        sequential(
            (12, 12, 3),
            layers.Conv2D(6, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.DepthwiseConv2D(3),
            layers.BatchNormalization(),
            layers.Activation("swish"),
            *then,
        )
    )


def frozen(model):
    model.trainable = False
    return model


class InInference(layers.Layer):
    """A model inside a body that runs as in inference while the body is trained."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x, training=False)


class Transformer(tf.keras.Model):
    def __init__(self, **named):
        super().__init__(**named)
        self.embed, self.attention = layers.Dense(8), layers.MultiHeadAttention(2, 4)
        self.norms = [layers.LayerNormalization() for _ in range(2)]
        self.feed_forward = tf.keras.Sequential([layers.Dense(16, "gelu"), layers.Dense(8)])

    def call(self, x):
        x = self.embed(x)
        x = self.norms[0](x + self.attention(x, x))
        return tf.reduce_mean(self.norms[1](x + self.feed_forward(x)), axis=1)


class LoopsInLoops(tf.keras.Model):
    """Reads weights, and normalises, inside loops inside loops."""

    def __init__(self, **named):
        super().__init__(**named)
        self.dense, self.norm, self.last = (
            layers.Dense(6),
            layers.LayerNormalization(),
            layers.Dense(3, "swish"),
        )

    def call(self, x):
        def of_step(step):
            return self.last(self.norm(self.dense(step[None])))[0]

        def of_example(example):
            return tf.map_fn(of_step, example, fn_output_signature=tf.TensorSpec([3]))

        of_steps = tf.map_fn(of_example, x, fn_output_signature=tf.TensorSpec([5, 3]))
        return tf.reduce_sum(of_steps, axis=1)


class NestedFunction(tf.keras.Model):
    """Decides inside a tf.function, and counts how often Python runs it."""

    def __init__(self, **named):
        super().__init__(**named)
        self.dense, self.calls = layers.Dense(4, "tanh"), 0

    @tf.function
    def call(self, x):
        self.calls += 1
        y = self.dense(x)
        return tf.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: 2 * y)


class Reversal(tf.keras.Model):
    """A gradient that is not that of the function."""

    def __init__(self, **named):
        super().__init__(**named)
        self.dense = layers.Dense(4)

    def call(self, x):
        @tf.custom_gradient
        def reverse(y):
            return y, lambda gradient: -3.0 * tf.abs(y) * gradient

        return reverse(self.dense(x))


def called(model, *shape, dtype=tf.float32):
    model(tf.zeros([2, *shape], dtype))
    return model


def backbone_with_dropout():
    return frozen(convolutional_backbone(layers.Dropout(0.5)))


def live_normalization():
    return positive_weights(sequential((4,), layers.Dense(5), layers.BatchNormalization()))


SERIES, TOKEN_SERIES, IMAGE = (5, 3), (5,), (12, 12, 3)


def tokens(*then, mask_zero=False):
    embedding = layers.Embedding(TOKENS, 4, mask_zero=mask_zero)
    return sequential(TOKEN_SERIES, embedding, *then, dtype="int32")


def on_top_of(backbone):
    return sequential(IMAGE, backbone, layers.GlobalAveragePooling2D(), layers.Dense(5))


BODIES = {
    "swish and gelu": (
        (4,),
        lambda: sequential((4,), layers.Dense(6, "swish"), layers.Dense(5, "gelu")),
    ),
    "recurrent": (SERIES, lambda: sequential(SERIES, layers.SimpleRNN(4))),
    "LSTM of tokens": (TOKEN_SERIES, lambda: tokens(layers.LSTM(4))),
    "both ways, masked": (
        TOKEN_SERIES,
        lambda: tokens(layers.Bidirectional(layers.GRU(3)), mask_zero=True),
    ),
    "convolution of tokens": (
        TOKEN_SERIES,
        lambda: tokens(layers.Conv1D(4, 3), layers.GlobalMaxPooling1D()),
    ),
    "layer normalization": (
        (4,),
        lambda: sequential((4,), layers.Dense(5), layers.LayerNormalization()),
    ),
    "group normalization": (
        IMAGE,
        lambda: sequential(
            IMAGE,
            layers.Conv2D(4, 5),
            layers.GroupNormalization(2),
            layers.Flatten(),
        ),
    ),
    "max pooling": (
        IMAGE,
        lambda: sequential(
            IMAGE,
            layers.Conv2D(4, 3),
            layers.MaxPooling2D(),
            layers.Conv2D(5, 2, padding="same"),
            layers.MaxPooling2D(3, 2, padding="same"),
            layers.Flatten(),
        ),
    ),
    "frozen backbone": (IMAGE, lambda: on_top_of(frozen(convolutional_backbone()))),
    "frozen, with dropout": (IMAGE, lambda: on_top_of(InInference(backbone_with_dropout()))),
    "normalized as in inference": (
        IMAGE,
        lambda: on_top_of(InInference(convolutional_backbone())),
    ),
    "dense, normalized as in inference": (
        (4,),
        lambda: sequential((4,), InInference(live_normalization())),
    ),
    "transformer": (SERIES, lambda: called(Transformer(), *SERIES)),
    "loops in loops": (SERIES, lambda: called(LoopsInLoops(), *SERIES)),
    "nested function": ((4,), lambda: called(NestedFunction(), 4)),
    "gradient of its own": ((4,), lambda: called(Reversal(), 4)),
}


def examples_for(model_or_body, shape, count=6):
    rng = np.random.default_rng(1)
    if model_or_body.example_dtype == tf.int32:
        return tf.constant(rng.integers(0, TOKENS, (count, *shape)), tf.int32)
    return tf.constant(rng.normal(size=(count, *shape)), tf.float32)


def theta_of(body):
    return [tf.constant(w) for w in body.initial_theta]


def weighted_sum(features):
    return tf.reduce_sum(tf.sin(features) * tf.range(1.0, 1.0 + features.shape[1]))


@tf.function
def of_keras(model, x):
    """Returns a Keras model's features and the gradient of `weighted_sum`."""
    with tf.GradientTape() as tape:
        features = model(x, training=True)
        loss = weighted_sum(features)
    gradient = tape.gradient(loss, model.trainable_variables)
    return features, [tf.convert_to_tensor(g) for g in gradient]


def of_body(body, theta, x):
    """Returns the same of a body."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        features = body(theta, x)
        loss = weighted_sum(features)
    return features, tape.gradient(loss, theta)


def assert_same(actual, expected):
    np.testing.assert_allclose(actual[0], expected[0], rtol=TOLERANCE, atol=TOLERANCE)
    largest = max(float(tf.reduce_max(tf.abs(g))) for g in expected[1])
    for a, b in zip(actual[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * largest)


def operations(body):
    parts = body._graphs
    both = (parts.forward, parts.backward)
    return {node.op for graph_def in both for node in graphs.nodes_and_called(graph_def)}


@pytest.mark.parametrize("name", BODIES)
def test_features_and_gradient_are_those_of_the_model(name):
    shape, build = BODIES[name]
    model = build()
    body = Body(model, shape)
    x, theta = examples_for(body, shape), theta_of(body)
    expected = of_keras(model, x)
    assert_same(tf.function(of_body)(body, theta, x), expected)
    assert body.num_features == expected[0].shape[1] and body.example_shape == shape
    for value, variable in zip(body.initial_theta, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(value, np.asarray(variable))
    for kind in ("FusedBatchNorm", "Resource", "Variable"):
        assert not {op for op in operations(body) if kind in op}
    for variable, weight in zip(model.trainable_variables, theta, strict=True):
        variable.assign(weight + 0.1)
    moved = [weight + 0.1 for weight in theta]
    assert_same(of_body(body, moved, x), of_keras(model, x))


@pytest.mark.parametrize(
    ("build", "shape", "features", "weights"),
    [
        (models.mlp, (28, 28, 1), 200, 784 * 200 + 200),
        (
            models.cifar_cnn,
            (32, 32, 3),
            192,
            4800 + 64 + 102400 + 64 + 4096 * 384 + 384 + 384 * 192 + 192,
        ),
        (models.omniglot_cnn, (28, 28, 1), 64, 576 + 64 + 3 * (36864 + 64)),
    ],
)
def test_the_papers_networks(build, shape, features, weights):
    """Sizes of Tables 4 and 5; features and gradient are the model's bit by bit, XLA's are near."""
    model = build(shape, seed=1)
    body = Body(model)
    assert body.num_features == features and body.example_dtype == tf.float32
    assert sum(w.size for w in body.initial_theta) == weights
    x, theta = examples_for(body, shape, 3), theta_of(body)
    expected = of_keras(model, x)
    actual = tf.function(of_body)(body, theta, x)
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_same(tf.function(of_body, jit_compile=True)(body, theta, x), expected)
    again, other = (Body(build(shape, seed=seed)).initial_theta for seed in (1, 2))
    assert all((a == b).all() for a, b in zip(body.initial_theta, again, strict=True))
    assert (body.initial_theta[0] != other[0]).any()


def test_weights_that_are_not_trained_are_constants():
    model = on_top_of(frozen(convolutional_backbone()))
    body = Body(model)
    assert [w.shape for w in body.initial_theta] == [(6, 5), (5,)]
    x, theta = examples_for(body, IMAGE), theta_of(body)
    before = body(theta, x)
    model.layers[0].set_weights([w + 1 for w in model.layers[0].get_weights()])
    np.testing.assert_array_equal(body(theta, x), before)


def test_the_bytes_of_an_example_are_those_of_all_layers():
    model = sequential((4,), layers.Dense(5, "relu"), layers.Dense(3))
    # The input; per layer the product, the sum with the bias, and the activation if there is one.
    assert Body(model).bytes_per_example == 4 * (4 + 5 + 5 + 5 + 3 + 3)
    time_first = called(TimeFirst(), 5, 3)
    assert Body(time_first, (5, 3)).bytes_per_example >= 4 * (5 * 3 + 5 * 3)


class TimeFirst(tf.keras.Model):
    """The examples do not come first in all that it computes."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(tf.transpose(x, [1, 0, 2])[-1])


def test_the_model_is_left_as_it_was_and_serves_on():
    model = called(NestedFunction(), 4)
    model.dense.trainable = True
    calls, weights = model.calls, model.get_weights()
    attributes = {name: value for name, value in vars(model).items() if name != "calls"}
    body = Body(model, (4,))
    theta = theta_of(body)
    for count in (1, 2, 3):
        of_body(body, theta, tf.ones([count, 4]))
    assert model.calls == calls + 1  # Traced once, whatever is done with the body.
    assert {name: value for name, value in vars(model).items() if name != "calls"} == attributes
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)
    x = tf.random.normal([3, 4], seed=0)
    features = body(theta, x)
    del body
    gc.collect()
    # The model's own functions are not forgotten together with the body.
    np.testing.assert_array_equal(model(x), features)


def test_a_body_outlives_its_model():
    body = Body(tokens(layers.LSTM(4)))
    gc.collect()
    x = examples_for(body, TOKEN_SERIES)
    assert body(theta_of(body), x).shape == (6, 4)


def of_fused(data_format, training, share, gradient):
    """Returns a function of the fused operation, or of its gradient by x, scale and offset."""

    def forward(x, scale, offset, mean, variance):
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            epsilon=0.01,
            exponential_avg_factor=share,
            data_format=data_format,
            is_training=training,
        )

    def backward(x, scale, offset, mean, variance):
        y, _, _, *reserved = forward(x, scale, offset, mean, variance)
        if not training:
            reserved[:2] = mean, variance
        return tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=tf.sin(y),
            x=x,
            scale=scale,
            reserve_space_1=reserved[0],
            reserve_space_2=reserved[1],
            reserve_space_3=reserved[2],
            epsilon=0.01,
            data_format=data_format,
            is_training=training,
        )

    return backward if gradient else forward


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_plain_normalization_computes_what_the_fused_does(data_format, training, share, gradient):
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(4, 3, 2, 5)), tf.float32)
    vectors = tf.constant(rng.uniform(0.5, 2, (4, 5)), tf.float32)
    scale, offset, mean, variance = tf.unstack(vectors)
    if training and share == 1.0:
        mean = variance = tf.zeros([0])
    expected = of_fused("NHWC", training, share, gradient)(x, scale, offset, mean, variance)[:3]
    if data_format == "NCHW":
        x = tf.transpose(x, [0, 3, 1, 2])
    arguments = (x, scale, offset, mean, variance)
    traced = tf.function(lambda *a: of_fused(data_format, training, share, gradient)(*a)[:3])
    traced = traced.get_concrete_function(*arguments)
    graph_def = traced.graph.as_graph_def()
    graphs.replace_by_calls(graph_def, normalization.BUILDERS)
    graphs.register_functions(graph_def)
    assert not [n for n in graphs.nodes_and_called(graph_def) if "FusedBatchNorm" in n.op]

    @tf.function
    def plain(*arguments):
        names = [tensor.name for tensor in traced.inputs]
        given = dict(zip(names, arguments, strict=True))
        return graphs.call(graph_def, given, [tensor.name for tensor in traced.outputs])

    first, *others = plain(*arguments)
    if data_format == "NCHW":
        first = tf.transpose(first, [0, 2, 3, 1])
    for a, b in zip((first, *others), expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def test_ties_in_max_pooling_have_the_gradient_that_tensorflow_gives_them():
    model = BODIES["max pooling"][1]()
    body = Body(model)
    x = tf.ones([3, *IMAGE])  # Every window has equal entries only.
    assert_same(of_body(body, theta_of(body), x), of_keras(model, x))


def test_gradient_of_max_pooling_is_in_a_function_with_its_pooling():
    """Elsewhere TensorFlow may take a kernel for it that is ten times slower."""
    graph_def = Body(BODIES["max pooling"][1]())._graphs.backward
    assert not [node for node in graph_def.node if node.op == "MaxPoolGrad"]
    own = [f for f in graph_def.library.function if f.attr["_noinline"].b]
    for function in own:
        assert [node.op for node in function.node_def if "MaxPool" in node.op] == [
            "MaxPool",
            "MaxPoolGrad",
        ]
    assert len(own) == 2  # The two poolings have different windows.


def test_ten_participants_train_side_by_side_with_layer_normalization():
    """With TensorFlow 2.14 the fused operation ends the process, if the clients' sizes differ."""
    body = sequential((4,), layers.Dense(5, "relu"), layers.LayerNormalization())
    algorithm = pfl.build_algorithm("pflego", pfl.SplitModel(body, 2), local_steps=3)
    clients = make_clients(range(3, 13), (2,) * 10, (2,) * 10)
    with pfl.Simulation(algorithm, clients, pfl.Participation(10, 10), "in_process") as simulation:
        for _ in range(30):  # Within five rounds, it was two of three processes that ended.
            simulation.run_round()
        assert all(np.isfinite(w).all() for w in simulation.server_state.theta)


@pytest.mark.parametrize(
    "name", ["layer normalization", "LSTM of tokens", "frozen backbone", "transformer"]
)
def test_bodies_train_alike_on_both_engines(name):
    """Ten clients, five rounds."""
    pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
    shape, build = BODIES[name]
    model = pfl.SplitModel(build(), 2, example_shape=shape)
    algorithm = pfl.build_algorithm("pflego", model, local_steps=2)
    sizes = {"train": 4, "test": 2}
    pairs = {}
    for split, size in sizes.items():
        examples = examples_for(model, shape, 10 * size).numpy().reshape(10, size, *shape)
        pairs[split] = [(own, np.arange(size) % 2) for own in examples]
    clients = pfl.from_arrays(**pairs)
    finals = []
    for engine in ("in_process", "tff"):
        with pfl.Simulation(algorithm, clients, pfl.Participation(10, 10), engine) as simulation:
            for _ in range(5):
                simulation.run_round()
            states = (simulation.server_state, simulation.client_states(range(10)))
            finals.append([np.asarray(leaf) for leaf in tf.nest.flatten(states)])
    moved = [(a != b).any() for a, b in zip(finals[0], model.initial_theta, strict=False)]
    assert all(moved)
    for a, b in zip(*finals, strict=True):
        np.testing.assert_allclose(a, b, rtol=ENGINE_TOLERANCE, atol=ENGINE_TOLERANCE)


def test_a_body_of_tokens_serves_in_a_tff_computation():
    tff = pytest.importorskip("tensorflow_federated", reason="the TFF engine is optional")
    from tf_pflego.engines.tff.context import ExecutionContext
    from tf_pflego.engines.tff.worker import Worker

    model = tokens(layers.Bidirectional(layers.LSTM(3)))
    body = Body(model)
    x = examples_for(body, TOKEN_SERIES)
    theta_type = [tff.TensorType(w.dtype, w.shape) for w in body.initial_theta]

    @tff.tensorflow.computation(theta_type, tff.TensorType(np.int32, x.shape))
    def of_body_on_tff(theta, x):
        features, gradient = of_body(body, list(theta), x)
        return [features, *gradient]

    context = ExecutionContext(Worker())
    try:
        with tff.framework.get_context_stack().install(context):
            features, *gradient = of_body_on_tff(body.initial_theta, x.numpy())
    finally:
        context.close()
    assert_same((features, gradient), of_keras(model, x))


def two_inputs():
    first, second = tf.keras.Input((4,)), tf.keras.Input((4,))
    return tf.keras.Model([first, second], layers.Dense(3)(layers.Concatenate()([first, second])))


def one_input_cut_in_two():
    both = tf.keras.Input((8,))
    return tf.keras.Model(both, layers.Dense(3)(layers.Concatenate()([both[:, :4], both[:, 4:]])))


def named_input():
    first = tf.keras.Input((4,), name="first")
    return tf.keras.Model({"first": first}, layers.Dense(3)(first))


class Part(tf.keras.Model):
    """Uses one of two layers."""

    def __init__(self, use=1, freeze=False):
        super().__init__()
        self.parts = [layers.Dense(3), layers.Dense(3, trainable=not freeze)]
        self.use = use

    def build(self, shape):
        for part in self.parts:
            part.build(shape)
        super().build(shape)

    def call(self, x):
        return self.parts[0](x) + (self.parts[1](x) if self.use == 2 else 0.0)


class Unowned(tf.keras.Model):
    """Uses a variable that is not its own, unless it is made to own it."""

    def __init__(self, own=False):
        super().__init__()
        self.dense = layers.Dense(3)
        scale = tf.Variable(1.0)
        if own:
            scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.scale = lambda: scale

    def call(self, x):
        return self.dense(x) * self.scale()


class Lookup(tf.keras.Model):
    """Takes rows of a matrix, which floats cannot say."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(tf.gather(tf.eye(TOKENS), x[:, 0]))


class Effect(tf.keras.Model):
    def __init__(self, python=True):
        super().__init__()
        self.dense, self.python = layers.Dense(3), python

    def call(self, x):
        if self.python:
            x = tf.ensure_shape(tf.numpy_function(lambda y: 2 * y, [x], tf.float32), [None, 4])
        else:
            x = 2 * x
        return self.dense(x)


class Inside(tf.keras.Model):
    """Puts a layer inside a tf.function inside a loop."""

    def __init__(self, layer):
        super().__init__()
        self.dense, self.layer = layers.Dense(3), layer

    def call(self, x, training=None):
        @tf.function
        def of_example(row):
            return self.layer(self.dense(row[None]), training=training)[0]

        return tf.map_fn(of_example, x)


def unbuilt():
    return tf.keras.Sequential([layers.Dense(3)])


def dense(*then, **arguments):
    return sequential((4,), layers.Dense(4, **arguments), *then)


def half_precision(output="float32"):
    policy = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return dense(layers.Dense(3, dtype=output))
    finally:
        tf.keras.mixed_precision.set_global_policy(policy)


def freeze_normalization(model):
    model.layers[-1].trainable = False
    return model


# What is refused, what the message says, and what it says to do.
def with_a_weight(model, value):
    first, *others = model.get_weights()
    first.flat[0] = value
    model.set_weights([first, *others])
    return model


REFUSED = {
    "dropout": (
        lambda: dense(layers.Dropout(0.5)),
        "draws random numbers.*Leave out",
        lambda: dense(),
    ),
    "noise": (lambda: dense(layers.GaussianNoise(0.5)), "draws random numbers", lambda: dense()),
    "dropout in a function in a loop": (
        lambda: (called(Inside(layers.Dropout(0.5)), 4), (4,)),
        "draws random numbers",
        lambda: (called(Inside(layers.Activation("relu")), 4), (4,)),
    ),
    "recurrent dropout": (
        lambda: sequential(SERIES, layers.LSTM(3, dropout=0.5)),
        "draws random numbers",
        lambda: sequential(SERIES, layers.LSTM(3)),
    ),
    "frozen backbone with dropout": (
        lambda: on_top_of(backbone_with_dropout()),
        "draws random numbers.*frozen backbone.*training=False in the `call`",
        lambda: on_top_of(InInference(backbone_with_dropout())),
    ),
    "live batch normalization": (
        lambda: live_normalization(),
        "change its variables.*batch normalisation.*trainable = False",
        lambda: freeze_normalization(live_normalization()),
    ),
    "live batch normalization, other remedy": (
        lambda: dense(layers.BatchNormalization()),
        "Or use LayerNormalization or GroupNormalization",
        lambda: dense(layers.LayerNormalization()),
    ),
    "unbuilt": (unbuilt, "not made its weights.*Input, or call it once", lambda: dense()),
    "unbuilt, other remedy": (
        lambda: Transformer(),
        "not made its weights.*Input, or call it once",
        lambda: sequential(SERIES, Transformer()),
    ),
    "no shape": (
        lambda: called(Transformer(), *SERIES),
        "which shape an example has.*Give `example_shape`",
        lambda: (called(Transformer(), *SERIES), SERIES),
    ),
    "open shape": (
        lambda: sequential((None, 3), layers.SimpleRNN(2)),
        r"which shape an example has; it says \(None, 3\).*Give `example_shape`",
        lambda: (sequential((None, 3), layers.SimpleRNN(2)), SERIES),
    ),
    "two inputs": (two_inputs, "one tensor of examples.*Concatenate", one_input_cut_in_two),
    "dictionary": (named_input, "one tensor of examples", lambda: dense()),
    "examples of another dtype": (
        lambda: (called(Lookup(), *TOKEN_SERIES, dtype=tf.int32), TOKEN_SERIES),
        "cannot be called.*float32.*put an Input",
        lambda: sequential(TOKEN_SERIES, Lookup(), dtype="int32"),
    ),
    "no vector": (
        lambda: sequential((4,), layers.Dense(4), layers.Reshape((2, 2))),
        "must end in one feature vector.*Flatten",
        lambda: sequential((4,), layers.Dense(4), layers.Reshape((2, 2)), layers.Flatten()),
    ),
    "softmax": (
        lambda: dense(layers.Dense(3, "softmax")),
        "ends in a classifier.*Leave the classifier out",
        lambda: dense(),
    ),
    "softmax layer": (lambda: dense(layers.Softmax()), "ends in a classifier", lambda: dense()),
    "sigmoid": (lambda: dense(layers.Dense(1, "sigmoid")), "ends in a classifier", lambda: dense()),
    "half precision": (half_precision, "compute in float32.*set_global_policy", lambda: dense()),
    "half precision out": (
        lambda: half_precision("float16"),
        "float32",
        lambda: dense(),
    ),
    "double precision": (
        lambda: dense(dtype="float64"),
        'must have float32 weights.*Build its layers with dtype="float32"',
        lambda: dense(dtype="float32"),
    ),
    "NaN": (
        lambda: with_a_weight(dense(), np.nan),
        "must have finite weights; .*kernel.* has infinite numbers or NaN.*initialise",
        lambda: dense(),
    ),
    "infinite, not trained": (
        lambda: on_top_of(frozen(with_a_weight(convolutional_backbone(), np.inf))),
        "must have finite weights",
        lambda: on_top_of(frozen(convolutional_backbone())),
    ),
    "no weights": (
        lambda: frozen(dense()),
        "no trainable weights.*trainable = True",
        lambda: dense(),
    ),
    "unused weights": (
        lambda: (called(Part(), 4), (4,)),
        "no gradient of its features reaches.*trainable = False",
        lambda: (called(Part(freeze=True), 4), (4,)),
    ),
    "unowned weights": (
        lambda: (called(Unowned(), 4), (4,)),
        "must own its weights.*add_weight",
        lambda: (called(Unowned(own=True), 4), (4,)),
    ),
    "python": (
        lambda: (called(Effect(), 4), (4,)),
        "an effect of its own .*PyFunc",
        lambda: (called(Effect(python=False), 4), (4,)),
    ),
}


def with_shape(body):
    return body if isinstance(body, tuple) else (body, None)


@pytest.mark.parametrize("name", REFUSED)
def test_bodies_that_cannot_serve_are_refused_with_a_remedy_that_works(name):
    refused, message, remedy = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        Body(*with_shape(refused()))
    model, shape = with_shape(remedy())
    body = Body(model, shape)
    x = examples_for(body, body.example_shape)
    assert_same(of_body(body, theta_of(body), x), of_keras(model, x))


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match="must be a Keras model"):
        Body(models.mlp)


def test_examples_of_another_dtype_are_refused():
    body = Body(tokens(layers.LSTM(4)))
    with pytest.raises(TypeError, match=r"`examples` must be int32.*got float32"):
        body(theta_of(body), tf.zeros([2, *TOKEN_SERIES]))
