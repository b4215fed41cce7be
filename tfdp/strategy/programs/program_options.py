"""What replicas' programs are asked for."""

from __future__ import annotations

from typing import NamedTuple

from tfdp.base.recording import Recorder


class ProgramOptions(NamedTuple):
    """What a program is asked for.

    Attributes:
      keep_rows: Whether outputs that are sharded are given as the local replicas' rows.
      jit_compile: Whether XLA compiles what lies between its collectives.
      recorder: What records its steps; None: nothing does.
      may_loop: Whether a graph that calls it may be a loop's body.
      compares: Whether the processes compare what they are given.
    """

    keep_rows: bool
    jit_compile: bool
    recorder: Recorder | None = None
    may_loop: bool = True
    compares: bool = False
