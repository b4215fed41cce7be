"""The first failure of this process' collectives: TensorFlow runs none after it.

Each later one ends with the first one's error, in whatever step it stands. So what failed first is
noted, and what would begin after it is told so.
"""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

# How TensorFlow begins the error of every collective once one has failed.
_MARK = "Collective ops is aborted by: "
_NODE = re.compile(r"\{\{node ([^\s}]+)\}\}")
# How tfdp adds to an error what of the program it is about.
_PROGRAM = "In the program"

_first: list[tf.errors.OpError] = []


def by(message: str) -> bool:
    """Returns whether an error's message says that the collectives of its process have ended.

    >>> by("Collective ops is aborted by: no"), by("Assertion failed")
    (True, False)
    """
    return _MARK in message


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Runs steps, unless the collectives of this process have ended before.

    Raises:
      tf.errors.OpError: They have; the message says in which operation of which step.
    """
    if _first:
        raise type(_first[0])(None, None, _said(_first[0].message))
    try:
        yield
    except tf.errors.OpError as error:
        if by(error.message) and not _first:
            _first.append(error)
        raise


def _said(message: str) -> str:
    """Returns what is said of the first error after it, given its message.

    >>> print(_said(
    ...     "Graph execution error:\\nCollective ops is aborted by: no such kernel\\nThe error ..."
    ...     "\\n[[{{node Sum}}]]\\nIn the program `step`: sum for Mean at train.py:3, in step."
    ... ))
    The collectives of this process must not have failed, but one has, and TensorFlow runs none
    after it: no such kernel (operation Sum). In the program `step`: sum for Mean at train.py:3, in
    step. Correct that, and start the program again.
    """
    cause = message.split(_MARK, 1)[1].splitlines()[0].rstrip(".")
    names = ", ".join(dict.fromkeys(_NODE.findall(message)))
    operation = f" (operation {names})" if names else ""
    program = [line for line in message.splitlines() if line.startswith(_PROGRAM)]
    return " ".join(
        [
            "The collectives of this process must not have failed, but one has, and TensorFlow "
            f"runs none after it: {cause}{operation}.",
            *program[:1],
            "Correct that, and start the program again.",
        ]
    )


def last_line(text: str) -> str:
    """Returns the last line of an error's text that names no node of a graph; "" if none does.

    >>> last_line("Trace\\nOSError: no\\n\\n\\t [[{{node PyFunc}}]]\\n\\t [[IteratorGetNext]]")
    'OSError: no'
    """
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("[[")), "")
