"""Which lines of a rank are those of libraries and tell a user nothing.

On standard error they are TensorFlow's information as it starts, and what it logs in each rank
whose collectives end because another rank has failed: the launcher says which rank that was, and
why. On standard output gloo, which JAX uses on CPUs, says for each device that it is connected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

# The least severity that TensorFlow is to log; that of information is 0.
LEVEL_VARIABLE = "TF_CPP_MIN_LOG_LEVEL"

_CHATTER = re.compile(
    rb"I\d{4} \d\d:|\d{4}-\d\d-\d\d \S+ I "  # absl's and TensorFlow's lines of information
    rb"|WARNING: All log messages before absl::InitializeLog"
    rb"|To enable the following instructions: "
    rb"|[EW]\d{4} \d\d:.*(?:StartAbort|endezvous is aborting|Collective ops is aborted|recvmsg)"
    # What follows such a line.
    rb"|The error could be from a previous operation\. Restart your program to reset\."
    rb"|Additional GRPC error information from remote target "
    rb"|:\{\"created\":|\t \[\[(?:\{\{node )?\w"
)


_CONNECTED = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\. ")


def hidden_ones(
    environ: Mapping[str, str],
) -> tuple[Callable[[bytes], bool], Callable[[bytes], bool]]:
    """Returns what tells the lines of output, and of errors, that are not shown.

    These are none where the user asks for information.

    >>> in_output, in_errors = hidden_ones({})
    >>> in_errors(b"I0000 00:00:1795249739.743009    5687 port.cc:153] oneDNN is on.")
    True
    >>> in_errors(b"E0000 00:00:1795249739.743009    5687 cuda.cc:1] no device")
    False
    >>> in_output(b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number ... is : 1")
    True
    """
    if environ.get(LEVEL_VARIABLE) == "0":
        return (lambda line: False), (lambda line: False)
    return (
        lambda line: _CONNECTED.match(line) is not None,
        lambda line: _CHATTER.match(line) is not None,
    )
