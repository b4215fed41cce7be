"""The messages between launchers: JSON, after a handshake by which both prove the secret.

1. A node introduces itself (`introduction`), and the rendezvous takes it in or sends `REFUSED`.
2. A node that has places for ranks says `READY`, with a port for each.
3. When the nodes are there, the rendezvous says `START`: which ranks are where.
4. A node whose ranks have ended says `ENDED`, and how (`How`). Where that is a failure, the
   rendezvous tells the others to `END` theirs. Where a node comes that may take part, it asks for a
   `STOP` at a checkpoint.
5. When all have ended, the rendezvous says `AGAIN`, and they go on at 2, or `FINISHED`.

Both sides say `ALIVE` every few seconds. Who says nothing for `SILENT_SECONDS` counts as lost.
"""

import enum
import hashlib
import pathlib
import socket
from typing import Any

from tfdp.cluster.launch.restarting import Attempt
from tfdp.cluster.launch.run_options import RunOptions

READY, START, ENDED, STOP, END, AGAIN, FINISHED, REFUSED, ALIVE = (
    "ready",
    "start",
    "ended",
    "stop",
    "end",
    "again",
    "finished",
    "refused",
    "alive",
)

ALIVE_SECONDS = 3.0
SILENT_SECONDS = 20.0


class How(enum.StrEnum):
    """How the ranks of one node have ended."""

    WELL = "well"
    STOPPED = "stopped"  # at a checkpoint
    RESIZED = "resized"  # at a checkpoint, as this node asked, where another number may run
    WISHED = "wished"  # at a checkpoint, as somebody asked this node
    FAILED = "failed"
    TOLD = "told"  # as the rendezvous said
    LEFT = "left"  # by a signal to this node
    OVER = "over"  # in a way that would repeat itself, or by the time limit


def how(attempt: Attempt) -> How:
    """Returns how the ranks of an attempt have ended on this node."""
    outcome = attempt.outcome
    if outcome.signal is not None:
        return How.LEFT
    if attempt.failed:
        return How.FAILED
    if attempt.resized:
        return How.RESIZED
    if outcome.elsewhere:
        return How.TOLD
    if outcome.stopped:
        return How.WISHED if outcome.wished else How.STOPPED
    return How.WELL if attempt.code == 0 else How.OVER


def introduction(options: RunOptions, serves: bool, attempts: int) -> dict[str, Any]:
    """Returns what a node says of itself.

    Args:
      options: The options of the run.
      serves: Whether this launcher serves the rendezvous.
      attempts: The number of attempts that it has seen.
    """
    return {
        "name": socket.gethostname(),
        "serves": serves,
        "attempts": attempts,
        "options": alike(options),
    }


def alike(options: RunOptions) -> dict[str, str]:
    """Returns what must be the same on all nodes, by its name.

    >>> alike(RunOptions(processes=2, command=("python", "x"), max_restarts=3))["-n"]
    '2'
    """
    script = options.command[0]
    path = pathlib.Path(script)
    content = path.read_bytes() if script.endswith(".py") and path.is_file() else b""
    return {
        "-n": str(options.ranks),
        "nodes": str(options.span_of_nodes),
        "COMMAND": " ".join(options.command),
        "the script's content": hashlib.sha256(content).hexdigest()[:16],
        "devices-per-process": str(options.devices_per_process),
        "gpus-per-process": str(options.gpus_per_process),
        "max-restarts": str(options.max_restarts),
        "restart-window": str(options.restart_window_seconds),
    }


def difference(own: dict[str, str], others: Any, name: str) -> str | None:
    """Returns the error where a node's options are not those of the rendezvous' node; else None.

    >>> print(difference({"-n": "2"}, {"-n": "4"}, "node-2"))
    `-n` must be alike on all nodes; received '2' at the rendezvous and '4' on node-2; start the
    same command on every host.
    """
    for option, value in own.items():
        other = others.get(option) if isinstance(others, dict) else None
        if other != value:
            return (
                f"`{option}` must be alike on all nodes; received {value!r} at the rendezvous and "
                f"{other!r} on {name}; start the same command on every host."
            )
    return None
