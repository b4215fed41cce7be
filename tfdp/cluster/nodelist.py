"""The expansion of Slurm's compressed lists of nodes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from tfdp.errors import ClusterError

_MAX_NODES = 65536  # Slurm's own limit: a longer list is a mistake that would fill the memory

# A part is plain characters or one bracket of ranges; an entry is one part or more.
_PART = re.compile(
    r"\[([^\[\],-]+(?:-[^\[\],-]+)?(?:,[^\[\],-]+(?:-[^\[\],-]+)?)*)\]|([^\[\],\s]+)"
)
_ENTRY = re.compile(rf"(?:{_PART.pattern})+")


def expand_nodelist(nodelist: str) -> tuple[str, ...]:
    """Returns the nodes of a list as Slurm compresses it, in the list's order.

    Numbers keep their leading zeros. Where a name has several brackets, the last varies fastest.

    Args:
      nodelist: Names, parts of which are brackets of numbers and ranges.

    Raises:
      ClusterError: The list is empty or malformed.

    >>> expand_nodelist("node[01-03,7],gpu-a[1-2]b,login")
    ('node01', 'node02', 'node03', 'node7', 'gpu-a1b', 'gpu-a2b', 'login')
    >>> expand_nodelist("rack[1-2]n[8-9]")
    ('rack1n8', 'rack1n9', 'rack2n8', 'rack2n9')
    """
    nodes: list[str] = []
    for entry in _entries(nodelist):
        choices = [
            list(_numbers(match[1], nodelist)) if match[1] else [match[2]]
            for match in _PART.finditer(entry)
        ]
        names = map("".join, itertools.product(*choices))
        nodes.extend(itertools.islice(names, _MAX_NODES + 1 - len(nodes)))
        if len(nodes) > _MAX_NODES:
            raise _not_a_list(nodelist, f"it has more than {_MAX_NODES} nodes")
    return tuple(nodes)


def _entries(nodelist: str) -> Iterator[str]:
    """Yields the entries, which end at the commas outside brackets."""
    position = 0
    while True:
        match = _ENTRY.match(nodelist, position)
        if match is None:
            raise _not_a_list(nodelist, f"no name at character {position}")
        yield match[0]
        position = match.end()
        if position == len(nodelist):
            return
        if nodelist[position] != ",":
            raise _not_a_list(nodelist, f"{nodelist[position]!r} at character {position}")
        position += 1


def _numbers(ranges: str, nodelist: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not all(text.isascii() and text.isdigit() for text in (first, last)):
            raise _not_a_list(nodelist, f"{part!r} is neither a number nor a range")
        if int(first) > int(last):
            raise _not_a_list(nodelist, f"the range {part!r} runs backwards")
        if int(last) - int(first) >= _MAX_NODES:
            raise _not_a_list(nodelist, f"the range {part!r} has more than {_MAX_NODES} nodes")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _not_a_list(nodelist: str, reason: str) -> ClusterError:
    return ClusterError(
        "A Slurm node list must be names and bracketed ranges such as 'node[01-03,7],login', "
        f"but is {nodelist!r}: {reason}. Leave it as Slurm sets it, or set "
        "`TFDP_COORDINATOR=host:port` to rank 0's address."
    )
