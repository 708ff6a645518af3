"""The facts about clients that the model of a run depends on."""

from typing import NamedTuple

from tf_pflego.engines.engine import Place


class ModelFacts(NamedTuple):
    """The facts about clients that a run's model depends on, also for remote clients."""

    example_shape: tuple[int, ...]
    num_classes: int  # K, the most that a client has
    num_global_classes: int  # C
    task: str
    class_mask: bool
    most_examples: int  # training examples of the largest client
    mean: tuple[float, ...] = ()  # [K] and the deviation, by which quantities are standardised
    deviation: tuple[float, ...] = ()


class Elsewhere(NamedTuple):
    """Clients that are programs on other machines."""

    facts: ModelFacts  # what is known of their data
    place: Place  # how they are reached
