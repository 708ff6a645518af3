"""Carries requests and replies between Unix sockets of a server and of its clients by NVFlare.

It is installed beside NVFlare on each machine and allowed in `local/resources.json`, so that no
code comes with a job. The environment variable TF_PFLEGO_PATH is the directory of the sockets at
the server, and the socket of the resident client at a client.
"""

import os
import pathlib

from carrier import frames
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

_TOPIC = "tf_pflego"
_BODY = "body"
_TURN_SECONDS = 0.5
_MOST_SECONDS = 24 * 3600.0  # The server of tf_pflego has a deadline of its own.


class AtServer(Controller):
    """Shows a socket for each client until a file with the name `ended` appears beside them."""

    def start_controller(self, fl_ctx):
        """Has nothing to do."""

    def stop_controller(self, fl_ctx):
        """Has nothing to do."""

    def control_flow(self, abort_signal, fl_ctx):
        """Carries until it is told to end."""
        engine, ready = fl_ctx.get_engine(), set()

        def names():
            for name in {client.name for client in engine.get_clients()} - ready:
                if _reply(engine, name, Shareable(), _TURN_SECONDS):  # The job runs there.
                    ready.add(name)
            return ready

        def ask(name, body):
            reply = _reply(engine, name, Shareable({_BODY: body}), _MOST_SECONDS)
            return reply and reply[_BODY]

        directory = pathlib.Path(os.environ["TF_PFLEGO_PATH"])
        frames.carry(directory, names, ask, lambda: abort_signal.triggered)


class AtClient(Executor):
    """Hands requests to the resident client for as long as the job lasts."""

    def handle_event(self, event_type, fl_ctx):
        """Begins to take requests when the job starts."""
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler(_TOPIC, _answer)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        """Refuses tasks, since there are none."""
        return make_reply(ReturnCode.TASK_UNKNOWN)


def _reply(engine, name, request, seconds):
    """Returns a client's reply, or None."""
    with engine.new_context() as context:
        reply = engine.send_aux_request([name], _TOPIC, request, seconds, context).get(name)
    return reply if reply and reply.get_return_code() == ReturnCode.OK else None


def _answer(topic, request, fl_ctx):
    reply = make_reply(ReturnCode.OK)
    if _BODY in request:  # What it raises, NVFlare tells the server by another return code.
        path = pathlib.Path(os.environ["TF_PFLEGO_PATH"])
        reply[_BODY] = frames.reply_of(path, request[_BODY])
    return reply
