"""Whether all processes have lowered the same program, asked before it is compiled and run.

Processes whose programs differ would wait for each other for ever, or train apart in silence.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib

from tfdp.cluster.watchdog import TRACE_OF
from tfdp.communication.replicas import ProcessGroup
from tfdp.errors import RankMismatchError
from tfdp.strategy.xla.lowering import Lowered

_SHOWN_CHARACTERS = 200


def check_same(processes: ProcessGroup, name: str, program: Lowered) -> None:
    """Checks that all processes have lowered this program; all must call it together.

    Cost: a checksum from each process to all, for each program that is compiled.

    Args:
      processes: The processes.
      name: The name of the function.
      program: The program as it was lowered here.

    Raises:
      RankMismatchError: They have not. Names the rank, and the first operations that differ.
    """
    if processes.world_size == 1:
        return
    text = program.module
    checksum = hashlib.sha256(text.encode()).hexdigest()
    # The watchdog knows what waits here, and names it where others call what they have already.
    told = processes.all_gather(f"{TRACE_OF}{name}", checksum)
    checksums = [post.value for post in told]
    if len(set(checksums)) == 1:
        return
    posts = processes.all_gather(f"the programs of {name}", None, zlib.compress(text.encode()))
    texts = [zlib.decompress(post.payload).decode() for post in posts]
    other = next(rank for rank, each in enumerate(checksums) if each != checksums[0])
    here, there = first_difference(texts[0], texts[other])
    raise RankMismatchError(
        f"{processes.said_by}all ranks must make the same program of {name!r}, but of rank 0 and "
        f"rank {other} it differs: {here!r} there is {there!r}. Give all ranks the same script, "
        "and what it decides by, such as the number of the process, the time or a file, the same "
        "value."
    )


def first_difference(one: str, other: str) -> tuple[str, str]:
    """Returns the first line of one text that is another in the other one, and that line.

    >>> first_difference("add\\n  multiply\\nadd", "add\\n  divide\\nadd")
    ('multiply', 'divide')
    """
    lines = itertools.zip_longest(one.splitlines(), other.splitlines(), fillvalue="nothing")
    here, there = next(pair for pair in lines if pair[0] != pair[1])
    return here.strip()[:_SHOWN_CHARACTERS], there.strip()[:_SHOWN_CHARACTERS]
