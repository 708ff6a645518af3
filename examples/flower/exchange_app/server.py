"""The server: the rounds of the package, with an engine whose clients are Flower's nodes."""

import json
import pathlib
import time

import numpy as np
import tensorflow as tf
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

import tf_pflego as pfl
from exchange_app import federation
from tf_pflego.core import seeds
from tf_pflego.core.algorithm import Sums
from tf_pflego.engines.engine import Outcome
from tf_pflego.simulation.rounds import Rounds

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Trains over the devices and in process, and writes how the two compare."""
    config = context.run_config
    run = federation.build(config)
    engine = FlowerEngine(grid, run)
    of_all = run.participation.federation
    state = run.algorithm.init_server(of_all)
    rounds = Rounds(run.algorithm, run.clients, of_all, engine, federation.SEED, state)
    seconds = []
    for number in range(1, config["num_rounds"] + 1):
        started = time.perf_counter()
        state, _, _ = rounds.train(number, state, run.participation, evaluate=False)
        engine.commit()
        seconds.append(time.perf_counter() - started)
    hits = engine.test_hits(state, config["num_rounds"])

    with pfl.Simulation(
        run.algorithm, run.clients, run.participation, "in_process", federation.SEED
    ) as simulation:
        simulation.run(config["num_rounds"])
        here = simulation.server_state
        expected = simulation.evaluate(train_loss=False).test_hits
    differences = [
        float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)), initial=0))
        for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(here), strict=True)
    ]
    report = {
        "largest_difference_of_weights": max(differences),
        "correct_answers": hits,
        "correct_answers_in_process": expected.tolist(),
        "seconds_of_rounds": seconds,
    }
    pathlib.Path(config["report"]).write_text(json.dumps(report))


class FlowerEngine:
    """Runs PFLEGO's exchanges at Flower's nodes, each of which is one client.

    Args:
      grid: The connection to the nodes.
      run: The run.
    """

    def __init__(self, grid, run):
        self._grid, self._run = grid, run
        self._last = 0  # exchanges so far
        self._kept = np.zeros(run.clients.num_clients, np.int64)  # the exchange of each's state
        self._staged = self._kept.copy()
        self._nodes = {}
        while len(self._nodes) < run.clients.num_clients:
            time.sleep(1)
            questions = {node: RecordDict() for node in grid.get_node_ids()}
            self._nodes = {
                reply["facts"]["client"]: node
                for node, reply in self._ask("query", questions).items()
            }

    def run_exchange(self, exchange, message, cohort, server_state, round_, evaluate):
        """See `Engine.run_exchange`."""
        self._last += 1
        to_all = {
            "message": federation.to_record(message),
            "round": federation.to_record(round_),
        }
        contents = {}
        for client, seed in zip(cohort.ids.tolist(), cohort.seeds.tolist(), strict=True):
            kept = int(self._staged[client])
            facts = ConfigRecord({"kept": kept, "new": self._last, "seed": seed})
            content = {**to_all, "facts": facts}
            if not kept:  # A first state may start from the server's.
                content["server_state"] = federation.to_record(server_state)
            contents[self._nodes[client]] = RecordDict(content)
        replies = self._ask("train", contents)
        replies = [replies[self._nodes[client]] for client in cohort.ids.tolist()]
        self._staged[cohort.ids] = self._last
        gradients = [federation.from_record(reply["summed"], message) for reply in replies]
        summed = tf.nest.map_structure(lambda *leaves: sum(leaves[1:], leaves[0]), *gradients)
        finite = np.array([reply["facts"]["finite"] for reply in replies])
        sums = Sums(summed, (), ())  # PFLEGO averages nothing.
        return Outcome(sums, individual=(), finite=finite, counts={})

    def commit(self):
        """See `Engine.commit`. The devices learn it from the state that the next message names."""
        self._kept = self._staged.copy()

    def roll_back(self):
        """See `Engine.roll_back`."""
        self._staged = self._kept.copy()

    def test_hits(self, server_state, round_number):
        """Returns a list of the correct answers of each client's model."""
        identities = self._run.clients.identities
        client_seeds = seeds.client_seeds(
            federation.SEED, "evaluation", identities, round_number
        ).tolist()
        contents = {}
        for client, node in self._nodes.items():
            facts = {"kept": int(self._kept[client]), "seed": client_seeds[client]}
            state = federation.to_record(server_state)
            contents[node] = RecordDict({"facts": ConfigRecord(facts), "server_state": state})
        replies = self._ask("evaluate", contents)
        return [replies[self._nodes[client]]["facts"]["hits"] for client in sorted(self._nodes)]

    def _ask(self, message_type, contents):
        """Sends each node its content, and returns node -> content of its answer."""
        messages = [
            Message(content, dst_node_id=node, message_type=message_type)
            for node, content in contents.items()
        ]
        replies = {}
        for reply in self._grid.send_and_receive(messages):
            if reply.has_error():
                raise RuntimeError(f"a device failed: {reply.error}")
            replies[reply.metadata.src_node_id] = reply.content
        return replies
