"""The report of `tfdp.verify`, which prints as a table."""

from __future__ import annotations

import dataclasses
import textwrap

from tfdp.errors import VerificationError

_WIDTH = 80
_ROW = "{:<15} {:>4} {:>10} {:>10}  {}"


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between the strategy and one device in a part of the program.

    Attributes:
      part: "loss", "metrics", "gradients", "weights", "layer state", "optimizer state", or "layer
        output".
      path: The name of the value in Keras, such as "sequential/dense/kernel".
      step: The step after which the values differ, from 1; 0 before the first step.
      size: The largest difference, divided by the largest value.
      control: The difference that rounding alone makes: that of a run on one device whose weights
        were moved by one unit in the last place.

    >>> found = Difference("weights", "sequential/dense/kernel", 1, size=0.025, control=1e-7)
    >>> found.size > 10 * found.control
    True
    """

    part: str
    path: str
    step: int
    size: float
    control: float


@dataclasses.dataclass(frozen=True)
class Report:
    """The findings of `tfdp.verify`; true if the program trains as on one device.

    Attributes:
      replicas: Number of replicas.
      steps: Number of compared steps.
      parted: The first difference of each part that differs, the likeliest cause first.
      agreeing: The largest difference of each part that agrees.
      cause: The layer, metric, optimizer or line that differs first; "" if nothing does.
      reason: The likely reason, and what to do.

    >>> Report(2, 3, (), (Difference("loss", "loss", 3, 6e-8, 6e-8),), "", "").check()
    On 2 replicas the program trains as on one device: 3 steps.
    <BLANKLINE>
    part            step difference    control  where
    loss              no    6.0e-08    6.0e-08  loss
    """

    replicas: int
    steps: int
    parted: tuple[Difference, ...]
    agreeing: tuple[Difference, ...]
    cause: str
    reason: str

    def __bool__(self) -> bool:
        return not self.parted

    def check(self) -> Report:
        """Returns the report if the program trains as on one device.

        Raises:
          VerificationError: The program does not; the message is the report.
        """
        if self.parted:
            raise VerificationError(f"\n{self}")
        return self

    def __repr__(self) -> str:
        rows = [*map(_row, self.parted), *(_row(d, agrees=True) for d in self.agreeing)]
        where = f"on {self.replicas} replicas"
        if not self.parted:
            title = f"{where} the program trains as on one device: {self.steps} steps."
        elif not self.cause:
            title = "the program does not repeat itself on one device: nothing can be compared."
        else:
            first = self.parted[0]
            when = f"in step {first.step}" if first.step else "before the first step"
            title = f"{where} the program does not train as on one device: {self.cause} parts "
            title += f"first, {when}."
        texts = [_wrapped(title[0].upper() + title[1:])]
        texts += ["\n".join([_ROW.format("part", "step", "difference", "control", "where"), *rows])]
        texts += [_wrapped(f"Likely reason: {self.reason}")] if self.reason else []
        return "\n\n".join(texts)


def _row(found: Difference, agrees: bool = False) -> str:
    room = _WIDTH - len(_ROW.format("", "", "", "", ""))
    path = found.path if len(found.path) <= room else f"...{found.path[3 - room :]}"
    step = "no" if agrees else found.step
    return _ROW.format(found.part, step, f"{found.size:.1e}", f"{found.control:.1e}", path)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
