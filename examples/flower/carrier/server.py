"""At the server: a Unix socket for each node of Flower, whose requests are pushed to the node."""

import os
import pathlib
import threading
import time

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from carrier import contents, frames

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carries until a file with the name `ended` appears in the directory of the sockets."""
    sockets = pathlib.Path(str(context.run_config["sockets"]))
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    threading.Thread(target=_end_with, args=(os.getppid(), sockets), daemon=True).start()
    poll_seconds = float(context.run_config["poll_seconds"])
    there: set[str] = set()
    one_at_a_time = threading.Lock()

    def nodes():
        nonlocal there
        with one_at_a_time:
            there = set(map(str, grid.get_node_ids()))
        return there

    def ask(node, body):
        message = Message(contents.content_of(body), dst_node_id=int(node), message_type="query")
        with one_at_a_time:
            (number,) = grid.push_messages([message])
        # Flower gives no number to what it refuses, for instance since the node has gone.
        while number and node in there:
            with one_at_a_time:
                replies = list(grid.pull_messages([number]))
            for reply in replies:
                return None if reply.has_error() else contents.body_of(reply.content)
            time.sleep(poll_seconds)
        return None

    frames.carry(sockets, nodes, ask)


def _end_with(parent, sockets):
    """Ends with the SuperLink's process, for which Flower's calls would wait forever."""
    while os.getppid() == parent:
        time.sleep(1)
    for path in sockets.glob("*.socket"):
        path.unlink(missing_ok=True)
    os._exit(1)
