"""The check that all processes have lowered the same program, before it is compiled.

Processes whose programs differ would wait for each other for ever, or train apart in silence.
"""

import hashlib
import zlib

from tfdp.base import rank_comparison
from tfdp.cluster.watchdog import TRACE_OF
from tfdp.communication.replicas import ProcessGroup
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
    lines = [texts[rank].splitlines() for rank in (0, other)]
    _, pair = rank_comparison.first_difference(*lines)
    here, there = ((line or "nothing").strip()[:_SHOWN_CHARACTERS] for line in pair)
    raise rank_comparison.mismatch(
        processes.said_by,
        f"all ranks must make the same program of {name!r}",
        f"of rank 0 and rank {other} it differs: {here!r} there is {there!r}",
        "Give all ranks the same script, and what it decides by, such as the number of the "
        "process, the time or a file, the same value.",
    )
