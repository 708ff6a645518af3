"""A worker that fails in the middle of an exchange changes nothing but the time.

A client's update reads a file, which may tell it to wait for what never comes. It then is in the
middle of an exchange for certain, and something can be done to its worker there.
"""

import contextlib
import dataclasses
import gc
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import tensorflow as tf

from tests.algorithms.everything import build_everything
from tests.algorithms.test_contract import whole_state
from tests.comparison import assert_identical
from tests.conftest import built
from tests.resources import is_running, wait_until_gone
from tests.tff.engine.test_worker import (
    DEADLINE_SECONDS,
    knows_notifications,
    listening_ports,
    wait_until,
)
from tf_pflego.core import nests
from tf_pflego.core.participation import Participation
from tf_pflego.engines import WorkerError
from tf_pflego.simulation.simulation import Simulation
from tf_pflego.tff.engine import watch

tff_engine = pytest.importorskip(
    "tf_pflego.tff.engine.tff_engine", reason="the TFF engine is optional"
)

ROUNDS = 3


def held(algorithm, directory):
    """Returns the algorithm with a last exchange in which each client reads a file of its own."""
    *others, last = algorithm.exchanges

    def wait():
        with tf.control_dependencies([tf.io.write_file(f"{directory}/waits", "")]):
            queue = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shapes=[[]])
            return tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])[0]

    def client_update(message, state, client, round_):
        numbers = [tf.strings.as_string(n) for n in (round_.number, client.num_examples)]
        text = tf.io.read_file(tf.strings.join([directory, *numbers], "/"))
        one = tf.ensure_shape(tf.cond(text == "wait", wait, lambda: tf.strings.to_number(text)), [])
        result = last.client_update(message, state, client, round_)
        return result._replace(summed=nests.scale(one, result.summed))

    exchanges = (*others, dataclasses.replace(last, client_update=client_update))
    return dataclasses.replace(algorithm, exchanges=exchanges)


def run(model, clients, directory, faults=(), max_restarts=1):
    """Returns all states and the records after some rounds, and the workers that failed.

    The client with 3 examples waits in round 2, until each of the faults has come.
    """
    for number in range(1, ROUNDS + 1):
        (directory / f"{number}").mkdir(parents=True)
        for size in clients.train.sizes:
            (directory / f"{number}/{size}").write_text("1")
    held_back, waits, failed = directory / "2/3", directory / "waits", []
    held_back.write_text("wait" if faults else "1")
    algorithm = held(build_everything(model), str(directory))
    everybody = Participation(clients.num_clients, clients.num_clients)
    with Simulation(algorithm, clients, everybody, "tff", 5, max_restarts) as simulation:
        outbox = pathlib.Path(simulation._engine._outbox)

        def injure():
            for left, fault in zip(reversed(range(len(faults))), faults, strict=True):
                wait_until(waits.exists)
                waits.unlink()
                held_back.write_text("wait" if left else "1")
                outbox.joinpath("left").touch()
                failed.append(simulation._engine.worker.pid)
                if fault is not None:
                    os.kill(failed[-1], fault)
                try:
                    wait_until_gone(failed[-1])
                except AssertionError:
                    os.kill(failed[-1], signal.SIGKILL)  # Else the round would wait for ever.
                    raise

        thread = threading.Thread(target=injure)
        thread.start()
        records = [simulation.run_round(evaluate=True) for _ in range(ROUNDS)]
        thread.join()
        assert not outbox.joinpath("left").exists()
        for record in records:
            del record["seconds"]
        return whole_state(simulation), records, failed


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory for temporary files, which must be empty at the end."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield
    assert list(path.iterdir()) == []


@pytest.fixture(scope="module")
def undisturbed(tiny_model, tiny_clients, tmp_path_factory):
    """The states and records of a run in which no worker fails."""
    states, records, _ = run(tiny_model, tiny_clients, tmp_path_factory.mktemp("undisturbed"))
    return states, records


# How a worker fails does not depend on the way of its messages, nor what is said of it.
@pytest.mark.thorough
@pytest.mark.parametrize("through_files", [False, True], ids=["messages", "files"])
@pytest.mark.usefixtures("temporary")
def test_a_worker_that_fails_in_an_exchange_changes_no_bit(
    through_files, undisturbed, tiny_model, tiny_clients, tmp_path, monkeypatch, told
):
    faults = {
        signal.SIGKILL: "was killed by SIGKILL, as when memory runs out",
        signal.SIGSEGV: "was killed by SIGSEGV",
        signal.SIGSTOP: "was stopped by a signal",
        None: "slept for 2 seconds without an answer",
    }
    if through_files:
        monkeypatch.setattr(tff_engine, "_MESSAGE_BYTES", 0)
        faults = {signal.SIGKILL: faults[signal.SIGKILL]}
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 2.0)
    states, records, failed = run(
        tiny_model, tiny_clients, tmp_path, faults, max_restarts=len(faults)
    )
    assert_identical(states, undisturbed[0])
    assert records == undisturbed[1]
    assert told() == [
        f"the TFF worker (process {pid}) {said}; a new one runs the exchange again "
        f"(restart {number} of {len(faults)})"
        for number, (pid, said) in enumerate(zip(failed, faults.values(), strict=True), 1)
    ]
    assert not any(is_running(pid) for pid in failed)


@pytest.fixture
def told(capfd, caplog):
    """Returns what was logged; on standard error there must be nothing else."""

    def messages():
        gc.collect()  # Values of workers that have failed are freed now, if not before.
        # A logger of the root may be there, which absl makes when it is used first.
        errors = capfd.readouterr().err.splitlines()
        assert [line for line in errors if not line.startswith("WARNING:tf_pflego:")] == []
        return caplog.messages

    return messages


def simulation_of(model, clients, max_restarts):
    algorithm, drawn = built("pflego", model, local_steps=2), Participation(3, 2)
    return Simulation(algorithm, clients, drawn, "tff", max_restarts=max_restarts)


@pytest.mark.thorough
def test_restarts_are_counted_for_each_exchange(tiny_model, tiny_clients, told):
    """A worker may fail in every round of a long run, if the next one does not fail there too."""
    with simulation_of(tiny_model, tiny_clients, max_restarts=1) as simulation:
        for _ in range(3):
            os.kill(simulation._engine.worker.pid, signal.SIGKILL)
            simulation.run_round()
    assert [line.split("(")[-1] for line in told()] == ["restart 1 of 1)"] * 3


@pytest.mark.thorough
def test_without_restarts_a_worker_that_ends_ends_the_round(tiny_model, tiny_clients, told):
    """Nothing has moved then, and the next round may be tried again.

    It listens on no port, where the kernel allows that.
    """
    with simulation_of(tiny_model, tiny_clients, max_restarts=0) as simulation:
        simulation.run_round()
        before, worker = whole_state(simulation), simulation._engine.worker.pid
        assert (listening_ports(worker) == []) == knows_notifications()
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"killed by SIGKILL, .* this exchange: 0"):
            simulation.run_round()
        assert_identical(whole_state(simulation), before)
        simulation.run_round()
        assert simulation.round_number == 2
    assert told() == []


@pytest.mark.thorough
def test_an_exchange_that_crashes_every_worker_ends_the_run(
    tiny_model, tiny_clients, temporary, told
):
    algorithm = built("pflego", tiny_model, local_steps=2)
    (exchange,) = algorithm.exchanges

    def abort(message, state, client, round_):
        with tf.control_dependencies([tf.raw_ops.Abort(error_msg="on purpose")]):
            return exchange.client_update(message, state, client, round_)

    exchanges = (dataclasses.replace(exchange, client_update=abort),)
    algorithm = dataclasses.replace(algorithm, exchanges=exchanges)
    started = time.monotonic()
    drawn = Participation(3, 2)
    with Simulation(algorithm, tiny_clients, drawn, "tff", max_restarts=2) as simulation:
        before = whole_state(simulation)
        with pytest.raises(WorkerError, match=r"killed by SIGABRT \(.*exchange: 2\)") as why:
            simulation.run_round()
        assert time.monotonic() - started < DEADLINE_SECONDS
        assert "`engine='in_process'`" in str(why.value)
        assert "on purpose" in why.value.log
        assert_identical(whole_state(simulation), before)
        assert (simulation.round_number, simulation.in_round) == (0, False)
    assert len(told()) == 2


@contextlib.contextmanager
def child(program):
    """Yields a watch of a Python process that has begun with its program."""
    program = f"print(flush=True); {program}"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        yield watch.Watch(process.pid), process
    finally:
        process.kill()
        process.communicate()


def look(own, awaited):
    """What the watch finds in some looks, beside those that show that all is well."""
    return {own.look(awaited) for _ in range(8)} - {None}


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(watch, "_SILENT_SECONDS", 4 * watch.LOOK_SECONDS)


def test_who_sleeps_when_it_owes_an_answer_is_silent(impatient):
    with child("import time; time.sleep(600)") as (own, process):
        wait_until(lambda: watch._sleeps(process.pid))
        assert look(own, None) == set()  # It owes none.
        assert {own.look(object()) for _ in range(8)} == {None}  # It answers.
        assert look(own, object()) == {"slept for 2 seconds without an answer"}


IN_A_THREAD = "import threading, time; threading.Thread(target=work).start(); time.sleep(600)"


@pytest.mark.parametrize("last", ["work()", IN_A_THREAD], ids=["alone", "beside one that sleeps"])
def test_a_thread_that_works_is_not_silent(last, impatient):
    with child(f"\ndef work():\n  while True: pass\n{last}") as (own, _):
        assert look(own, object()) == set()


def test_who_is_stopped_is_given_some_time_to_go_on():
    """A job that is stopped and goes on as a whole does not go on all at once."""
    with child("\nwhile True: pass") as (own, process):
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert own.look(None) is None
        process.send_signal(signal.SIGCONT)
        assert own.look(None) is None
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert own.look(None) is None
        assert own.look(None) == "was stopped by a signal"
    assert own.look(None) is None  # It has ended, which another tells.
