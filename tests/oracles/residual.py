"""`networks.resnet8` in float64 NumPy: its features, their gradient, and its statistics."""

import numpy as np

EPSILON = 1e-3
BLOCKS = ((1, 16), (2, 32), (2, 64))  # strides and filters


class Tape:
    """What has been computed, with the way back: each step adds to the gradients of its inputs."""

    def __init__(self, theta, names, statistics=None):
        self.theta = {name: np.asarray(w, np.float64) for name, w in zip(names, theta, strict=True)}
        self.gradient = {name: np.zeros_like(w) for name, w in self.theta.items()}
        self.given, self.moments, self.steps = statistics, [], []

    def convolved(self, x, number, strides):
        """[n, h, w, c] by a kernel [k, k, c, f], with zeros around as TensorFlow has them."""
        name = f"convolution_{number}/kernel"
        kernel = self.theta[name]
        size = kernel.shape[0]
        out = -(-x.shape[1] // strides)
        border = max((out - 1) * strides + size - x.shape[1], 0)
        pad = [(0, 0), *[(border // 2, border - border // 2)] * 2, (0, 0)]
        padded = np.pad(x, pad)

        def window(array, row, column):
            rows, columns = (slice(a, a + (out - 1) * strides + 1, strides) for a in (row, column))
            return array[:, rows, columns]

        places = [(a, b) for a in range(size) for b in range(size)]
        y = sum(window(padded, *place) @ kernel[place] for place in places)

        def back(g):
            into = np.zeros_like(padded)
            for place in places:
                self.gradient[name][place] += np.einsum("nhwc,nhwf->cf", window(padded, *place), g)
                window(into, *place)[...] += g @ kernel[place].T
            first = border // 2
            return into[:, first : first + x.shape[1], first : first + x.shape[2]]

        return y, back

    def normalized(self, x, number):
        scale, offset = (f"normalization_{number}/{name}" for name in ("gamma", "beta"))
        if self.given is None:
            mean, variance = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
        else:
            mean, variance = self.given[2 * number : 2 * number + 2]
        self.moments += [mean, variance]
        deviation = np.sqrt(variance + EPSILON)
        z = (x - mean) / deviation

        def back(g):
            self.gradient[scale] += (g * z).sum(axis=(0, 1, 2))
            self.gradient[offset] += g.sum(axis=(0, 1, 2))
            g = g * self.theta[scale] / deviation
            if self.given is not None:
                return g
            return g - g.mean(axis=(0, 1, 2)) - z * (g * z).mean(axis=(0, 1, 2))

        return self.theta[scale] * z + self.theta[offset], back

    def unit(self, x, number, strides=1, rectified=True):
        x, through_convolution = self.convolved(x, number, strides)
        x, through_normalization = self.normalized(x, number)
        positive = x > 0 if rectified else np.ones_like(x)
        return x * positive, lambda g: through_convolution(through_normalization(g * positive))


def features(theta, names, x, statistics=None):
    """Returns the features [n, M], a function from their gradient to that of theta, and moments.

    With statistics it is inference. A network of one convolution is the first unit alone.
    """
    tape, numbers = Tape(theta, names, statistics), iter(range(9))
    x, first_back = tape.unit(np.asarray(x, np.float64), next(numbers))
    ways_back = [first_back]
    for strides, _ in BLOCKS if len(names) > 3 else ():
        inner, back_1 = tape.unit(x, next(numbers), strides)
        inner, back_2 = tape.unit(inner, next(numbers), rectified=False)
        around, back_around = x, lambda g: g
        if strides > 1:
            around, back_around = tape.unit(x, next(numbers), strides, rectified=False)
        total = inner + around
        x = np.maximum(total, 0)

        def back(g, positive=total > 0, ways=(back_1, back_2, back_around)):
            g = g * positive
            return ways[0](ways[1](g)) + ways[2](g)

        ways_back.append(back)
    height, width = x.shape[1:3]

    def pull_back(g):
        g = np.broadcast_to(g[:, None, None] / (height * width), x.shape)
        for back in reversed(ways_back):
            g = back(g)
        return [tape.gradient[name] for name in names]

    return x.mean(axis=(1, 2)), pull_back, tape.moments
