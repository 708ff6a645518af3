"""A device: it has one client's examples and state, and runs its part of an exchange."""

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from exchange_app import federation
from tf_pflego.core.algorithm import Round
from tf_pflego.engines.engine import Cohort
from tf_pflego.engines.in_process import InProcessEngine

app = ClientApp()
_ONLY = np.zeros(1, np.int64)  # the number of this device's client among its own


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Says which client this device is."""
    facts = ConfigRecord({"client": context.node_config["client"]})
    return Message(RecordDict({"facts": facts}), reply_to=message)


@app.train()
def exchange(message: Message, context: Context) -> Message:
    """Runs an exchange from the state that the server names, and keeps the new state beside it.

    The server names the state that came out of the last exchange of a round which it has kept. A
    round that came to nothing is thereby undone without a message.
    """
    sent = message.content
    facts = sent["facts"]
    run = federation.build(context.run_config)
    engine, server_state = _engine(run, context), _server_state(run, sent)
    kept = f"state_{facts['kept']}"
    if facts["kept"]:
        _restore(engine, server_state, context.state[kept])
    (step,) = run.algorithm.exchanges
    round_ = Round(*sent["round"].to_numpy_ndarrays())
    to_all = federation.from_record(sent["message"], step.broadcast(server_state, round_))
    seeds = np.array([facts["seed"]], np.int32)
    cohort = Cohort(_ONLY, seeds, ())
    outcome = engine.run_exchange(step, to_all, cohort, server_state, round_, evaluate=False)
    engine.commit()
    for name in [name for name in context.state if name != kept]:
        del context.state[name]
    new = engine.read_states(_ONLY, server_state)
    context.state[f"state_{facts['new']}"] = federation.to_record(new)
    engine.close()
    reply = {
        "summed": federation.to_record(outcome.summed),
        "facts": ConfigRecord({"finite": bool(outcome.finite[0])}),
    }
    return Message(RecordDict(reply), reply_to=message)


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Tests the client's model on its test examples."""
    sent = message.content
    facts = sent["facts"]
    run = federation.build(context.run_config)
    engine, server_state = _engine(run, context), _server_state(run, sent)
    if facts["kept"]:
        _restore(engine, server_state, context.state[f"state_{facts['kept']}"])
    seeds = np.array([facts["seed"]], np.int32)
    counts = engine.evaluate(_ONLY, seeds, False, server_state)
    engine.close()
    hits, _ = next(iter(counts.values()))["test"]["accuracy"]
    reply = RecordDict({"facts": ConfigRecord({"hits": int(hits[0])})})
    return Message(reply, reply_to=message)


def _engine(run, context):
    client = np.array([context.node_config["client"]])
    shard = run.clients.shard(client, int(run.clients.train.offsets[-1]))
    first = run.algorithm.init_server(run.participation.federation)
    return InProcessEngine(run.algorithm, shard, first, federation.SEED)


def _server_state(run, sent):
    like = run.algorithm.init_server(run.participation.federation)
    return federation.from_record(sent["server_state"], like) if "server_state" in sent else like


def _restore(engine, server_state, record):
    like = engine.read_states(_ONLY, server_state)
    engine.write_states(_ONLY, federation.from_record(record, like))
