"""Several exchanges in a round, each like the method's single exchange.

In each the server sends its newest weights to the same participants and takes a step. With
`exchange_examples` part, a participant works on a random equal share of its examples in each
exchange, and a round passes all examples once, like mini-batches on one machine. Each exchange
costs the same bytes. A gradient that is unbiased because of random participants stays unbiased only
in the first exchange of a round: the weights of later exchanges depend on the participants.
"""

from __future__ import annotations

import dataclasses

from tf_pflego.core import settings
from tf_pflego.core.algorithm import Algorithm
from tf_pflego.core.local_training import take
from tf_pflego.core.shuffles import part, shuffled


@dataclasses.dataclass(frozen=True)
class Exchanges(settings.HyperParameters):
    """The hyper-parameters of a method with one or several exchanges per round."""

    exchanges_per_round: int = settings.setting(
        1, "how often the server and the same participants exchange in a round", at_least=1
    )
    exchange_examples: str = settings.setting(
        "all",
        "a participant's examples in each exchange: all, or a random part, which is the fraction 1 "
        "/ exchanges_per_round",
        choices=("all", "part"),
        read_with={"exchanges_per_round": None},
    )

    def of_each_round(self, algorithm: Algorithm) -> Algorithm:
        """Returns a method of one exchange with as many as the settings ask for."""
        (exchange,), count = algorithm.exchanges, self.exchanges_per_round

        def on_a_part(message, state, client, round_):
            size = (client.num_examples + count - 1) // count
            rows = part(shuffled(client.num_examples, client.seed), 0, size)
            return exchange.client_update(message, state, take(client, rows), round_)

        in_parts = count > 1 and self.exchange_examples == "part"
        each = dataclasses.replace(exchange, client_update=on_a_part) if in_parts else exchange
        return dataclasses.replace(algorithm, exchanges=(each,) * count)
