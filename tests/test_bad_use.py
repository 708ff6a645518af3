"""A simulation that is used in a way that cannot be refuses it, and nothing changes."""

import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_pflego as pfl
from tests.engines.agreement import ENGINES
from tests.test_bad_arguments import arrays, simulation_of
from tf_pflego import data
from tf_pflego.engines.tracing import Traced


@pytest.fixture(scope="module")
def simulation():
    with simulation_of() as simulation:
        simulation.run_round()
        yield simulation


def states(simulation, ids=(0, 1)):
    return simulation.client_states(ids)


def of_head(head):
    return lambda s: s.set_client_states([0, 1], states(s)._replace(head=head))


ENDLESS: list = []
ENDLESS.append(ENDLESS)
USES = [
    (lambda s: s.run(0), "`num_rounds` must be at least 1; got 0. Raise `num_rounds`"),
    (lambda s: s.run(1, 1, 1, "x"), TypeError, "`on_round` must be a function; got 'x'. Leave"),
    (lambda s: s.run_round("no"), "`evaluate` must be True or False; got 'no'. Correct"),
    (lambda s: s.save(3), "`directory` must be a path, text or os.PathLike; got 3. Correct"),
    (lambda s: s.save(""), "`directory` must be a path; got ''. Write the current directory as"),
    (lambda s: s.restore("/nowhere"), "`directory` must have a checkpoint; /nowhere has none"),
    (lambda s: s.client_states([3]), r"`client_ids` must be in \[0, 3\), the clients; got 3"),
    (lambda s: s.client_states([0.5]), TypeError, "`client_ids` must be integers; got float64"),
    (lambda s: s.client_states(1), "`client_ids` must be of rank 1; got shape ()"),
    (lambda s: s.set_client_states([0, 0], states(s)), "must be different; got an id twice. Name"),
    (lambda s: s.set_client_states([0], states(s)), r"head must be float32 of shape \(1, 3, 6\)"),
    (lambda s: s.set_client_states([0], 3), "`states` must have the structure of ClientState with"),
    (of_head(np.zeros([2, 3, 6])), "head must be float32 of .*; got float64 of .* Convert it"),
    (of_head(np.zeros([2, 3, 5], np.float32)), r"got float32 of shape \(2, 3, 5\). Convert it"),
    (lambda s: s.change_clients(join=3), TypeError, "`join` must be of the class ClientData"),
    (lambda s: s.client_model(np.zeros([2, 3])), r"of a client; got array\(\[\[0., 0., 0.\], \["),
    (lambda s: pfl.NewClients(s, arrays()).curve([1], 1, "x"), "`seed` must be a finite number"),
    (lambda s: pfl.export_clients(s, [0], 3), "`output_dir` must be a path, text or os.PathLike"),
    (lambda s: pfl.export_bundle(s, [], "x"), "`clients` must be the ids of at least one"),
    (lambda s: pfl.NewClients(s, 3), TypeError, "`clients` must be of the class"),
    (lambda s: pfl.NewClients(s, arrays(), 1, 0), "`learning_rate` must be above 0; got"),
    (lambda s: pfl.NewClients(s, arrays()).trained(1), "a number for mini-batches, .* got 'auto'"),
    (lambda s: pfl.NewClients(s, arrays(), 1, 1).trained(1.5), "`epochs` must be a whole number"),
    (lambda s: pfl.NewClients(s, arrays(), 1, 1).trained(1, 1, "x"), "`engine` must be one of tff"),
]  # fmt: skip


@pytest.mark.parametrize("row", USES, ids=lambda row: row[-1][:50])
def test_a_bad_use_changes_nothing(row, simulation):
    call, *kind, message = row
    before = everything(simulation)
    with pytest.raises(kind[0] if kind else ValueError, match=message):
        call(simulation)
    assert everything(simulation) == before


def everything(simulation):
    heads = np.asarray(simulation.client_states(range(3)).head)
    theta = [np.asarray(leaf).tobytes() for leaf in simulation.server_state.theta]
    return simulation.round_number, simulation.in_round, heads.tobytes(), theta


def test_a_closed_simulation_says_so():
    with simulation_of() as simulation:
        pass
    simulation.close()
    for name, use in {
        "run_round": simulation.run_round,
        "run": lambda: simulation.run(1),
        "evaluate_all": simulation.evaluate,
        "client_states": lambda: simulation.client_states([0]),
        "set_client_states": lambda: simulation.set_client_states([0], 3),
        "save": lambda: simulation.save("x"),
        "restore": lambda: simulation.restore("x"),
    }.items():
        with pytest.raises(RuntimeError, match=f"before it is closed; `{name}` was called after"):
            use()
    assert simulation.round_number == 0


def test_while_it_runs_on_round_may_read_it_and_a_second_thread_waits_or_is_refused(tmp_path):
    refused = []

    def assert_refused(message, *uses):
        for use in uses:
            with pytest.raises(RuntimeError, match=message):
                use()
            refused.append(message)

    def in_a_thread(*arguments):
        thread = threading.Thread(target=arguments[0], args=arguments[1:])
        thread.start()
        thread.join()

    def on_round(record):
        simulation.evaluate()
        simulation.client_states([0])
        simulation.save(tmp_path)
        run, restore = lambda: simulation.run(1), lambda: simulation.restore(tmp_path)
        uses = simulation.run_round, run, restore, simulation.close
        assert_refused("must not be called from `on_round`", *uses)
        uses = simulation.run_round, simulation.evaluate, simulation.close
        in_a_thread(assert_refused, "one thread at a time", *uses)

    with simulation_of() as simulation, simulation_of() as alone:
        simulation.run(2, on_round=on_round)
        assert refused == 2 * (4 * [refused[0]] + 3 * ["one thread at a time"])
        in_a_thread(simulation.run_round)
        alone.run(3)
        assert everything(simulation) == everything(alone)


def said_in_a_forked_child(*uses, end=lambda: None):
    """Returns the child's process id, and what the RuntimeErrors of the uses say."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # What is not refused may wait for ever.
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                os.write(writing, f"{error}\n".encode())
        end()
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        lines = said.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    return child, lines


@pytest.mark.parametrize("engine", ENGINES[:2])
def test_a_forked_child_is_refused_and_ends_nothing(engine):
    with simulation_of(engine=engine) as simulation:
        simulation.run_round()

        def end():
            simulation.close()
            if engine == "tff":
                simulation._engine.worker.stop()  # As at the child's normal exit.

        child, said = said_in_a_forked_child(simulation.run_round, end=end)
        (line,) = said
        assert f"`run_round` was called in process {child}, forked from" in line
        simulation.run_round()
        assert simulation.round_number == 2


def test_a_forked_child_is_refused_what_would_wait_for_tensorflows_threads():
    uses = (simulation_of, lambda: data.load("digits"), lambda: Traced(tf.abs)(np.ones(1)))
    tf.abs(1.0)  # Now TensorFlow has threads, in this process.
    child, said = said_in_a_forked_child(*uses)
    things = ("simulation must be made", "dataset must be loaded", "model must learn and predict")
    assert said == [
        f"a {thing} in a process that has TensorFlow's threads; process {child} has none, since it "
        "was forked from one that had used TensorFlow. Start processes by "
        "`multiprocessing.get_context('spawn')`, or before anything is computed."
        for thing in things
    ]
