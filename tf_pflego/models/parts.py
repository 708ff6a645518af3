"""The weights of a body that are shared, and those that stay with each client."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_pflego.core.algorithm import Weights
from tf_pflego.models.body.trace import name_of
from tf_pflego.system import values


class Parts(NamedTuple):
    """The owners of a body's weights. Weights with statistics have them after the shared ones."""

    is_personal: tuple[bool, ...]  # for each weight of theta

    @property
    def any_personal(self) -> bool:
        """Whether a weight is personal."""
        return any(self.is_personal)

    def of_more(self, count: int) -> Parts:
        """Returns the parts of a body with `count` weights. Further weights are shared."""
        return Parts(self.is_personal + (False,) * (count - len(self.is_personal)))

    def split(self, weights: Weights) -> tuple[Weights, tuple[tf.Tensor, ...]]:
        """Returns the weights without their personal leaves, and these."""
        theta, count = weights.theta, len(self.is_personal)
        pairs = list(zip(theta[:count], self.is_personal, strict=True))
        shared = [leaf for leaf, is_personal in pairs if not is_personal]
        personal = tuple(leaf for leaf, is_personal in pairs if is_personal)
        return weights._replace(theta=[*shared, *theta[count:]]), personal

    def joined(self, shared: Weights, personal: Sequence[tf.Tensor]) -> Weights:
        """Returns the weights of a whole network from the parts of `split`."""
        leaves, own = iter(shared.theta), iter(personal)
        theta = [next(own if is_personal else leaves) for is_personal in self.is_personal]
        return shared._replace(theta=[*theta, *leaves])


def of_body(model: Any, names: str) -> Parts:
    """Returns the parts of a Keras body with the names of its personal layers and weights.

    The names are separated by commas, with the wildcards of file names, as in `lora_*`. A layer's
    name chooses all its trained weights, also in its inner layers.

    Raises:
      TypeError: `names` is no text.
      ValueError: A name matches no layer or weight that is trained, or no weight is shared.
    """
    names = values.text("personal", names)
    of_weights: dict[int, set[str]] = {}
    for weight in model.trainable_variables:
        of_weights[id(weight)] = {name_of(weight).split("/")[-1].removesuffix(":0")}
    for layer in model._flatten_layers(include_self=False):
        for weight in layer.trainable_variables:
            of_weights.get(id(weight), set()).add(layer.name)
    known = sorted(set().union(*of_weights.values()))
    chosen: set[str] = set()
    for pattern in [name.strip() for name in names.split(",")] if names else []:
        if not (some := fnmatch.filter(known, pattern)):
            raise ValueError(
                f"`personal` must name layers or weights of the body that are trained; {pattern!r} "
                f"matches none of {', '.join(known)}. Correct `personal`."
            )
        chosen.update(some)
    parts = Parts(tuple(bool(chosen & of_weights[id(w)]) for w in model.trainable_variables))
    if all(parts.is_personal):
        raise ValueError(
            f"`personal` must leave a shared weight in the body; {names} names all. Remove a "
            "name, or choose the method lg_fedavg or local."
        )
    return parts
