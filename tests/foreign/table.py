"""How a program says what becomes of it on many replicas.

A program is a function of a strategy, as its author would write it: on one device the strategy is
TensorFlow's default one. It returns what it makes, models and layers, histories, predictions, in
any nest. Its decorator says the outcome; there is none for a program that differs in silence.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

WEIGHT_TOLERANCE = 1e-5  # of the largest value of its kind


@dataclasses.dataclass(frozen=True)
class Program:
    """A program and its outcome on many replicas.

    Attributes:
      run: The program.
      outcome: "agrees" with one device; or `tfdp.verify` says so, "verified".
      tolerance: By how much what it makes may differ, of the largest value of its kind.
      batches: What `tfdp.verify` trains on; then `run` has no argument and returns the model.
      compiles: Whether TensorFlow has all of its operations for XLA, as `jit_compile=True` needs.
    """

    run: Callable[..., Any]
    outcome: str
    tolerance: float = WEIGHT_TOLERANCE
    batches: Any = None
    compiles: bool = True


PROGRAMS: dict[str, Program] = {}


def _declared(outcome, **options):
    def declare(run):
        known = PROGRAMS.get(run.__name__)  # pytest imports each module for doctests, too
        assert known is None or _file(known.run) == _file(run), run.__name__
        PROGRAMS[run.__name__] = Program(run, outcome, **options)
        return run

    return declare


def _file(run):
    return run.__code__.co_filename


def agrees(tolerance=WEIGHT_TOLERANCE, compiles=True):
    """The program makes what it makes on one device."""
    return _declared("agrees", tolerance=tolerance, compiles=compiles)


def verified(batches, compiles=True):
    """`tfdp.verify` says that the program trains as on one device."""
    return _declared("verified", batches=batches, compiles=compiles)
