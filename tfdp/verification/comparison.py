"""The comparison of the runs of one program, which finds where they first differ."""

import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import compiler_of, processes_of
from tfdp.verification import probes, readings, reasons, run_differences, source_lines
from tfdp.verification.run_differences import Table
from tfdp.verification.training_run import Run, TrainedProgram, train
from tfdp.verification.verification_report import Difference, Report

# The seeds of the controls. The second and third run only if something differs, to see whether
# rounding explains it.
_MOVES = (1, 2, 3)

# The parts that rounding cannot amplify within the first step, which begins with the same weights.
_OF_FIRST_STEP = (readings.LOSS, readings.STATE, readings.GRADIENTS, readings.METRICS)

_LAYERS = "layer output"


class Comparison:
    """The runs of one program and their differences, which are the same on all ranks.

    Args:
      program: The program that is trained.
      strategy: The strategy that it is compared under.
      tolerance: The size, relative to the largest value, above which a difference counts.
    """

    def __init__(
        self, program: TrainedProgram, strategy: tf.distribute.Strategy, tolerance: float
    ) -> None:
        self._program, self._strategy, self._tolerance = program, strategy, tolerance
        self._processes = processes_of(strategy)
        self._processes.compare("the batches of `tfdp.verify`", program.batches.described())
        self._reference = train(program)
        self._controls = [self._compared(train(program, move=_MOVES[0]))]

    def report(self) -> Report:
        """Trains the program under the strategy and returns the report on it."""
        unsteady = self._unsteady()
        if unsteady:
            return self._unrepeatable(unsteady)
        run = train(self._program, self._strategy)
        table = self._compared(run)
        found = self._apart(table)
        for move in _MOVES[1:]:
            if found and self._amplifies():
                self._controls.append(self._compared(train(self._program, move=move)))
                found = self._apart(table)
        replicas_differ = self._replicas_differ(run)
        if replicas_differ and not found:
            found = {(len(run.steps) - 1, readings.WEIGHTS, "the replicas' copies"): np.inf}
        parted, agreeing = self._listed(table, found)
        cause = reason = ""
        if parted:
            parted, cause, reason = self._explained(parted, replicas_differ)
        return self._report(parted, agreeing, cause, reason)

    def _report(self, *found: Any) -> Report:
        steps = len(self._program.batches.steps)
        return Report(self._strategy.num_replicas_in_sync, steps, *found)

    # ---- what differs

    def _compared(self, run: Run) -> Table:
        _check_same_model(self._reference, run)
        return self._of_all_ranks(run_differences.differences(self._reference.steps, run.steps))

    def _of_all_ranks(self, table: Table) -> Table:
        payload = json.dumps([[*key, value] for key, value in table.items()]).encode()
        posts = self._processes.all_gather("a table of `tfdp.verify`", payload=payload)
        tables = [json.loads(post.payload) for post in posts]
        return run_differences.merged(
            {tuple(key): value for *key, value in rows} for rows in tables
        )

    def _apart(self, table: Table) -> Table:
        return run_differences.apart(table, self._controls, self._tolerance)

    def _amplifies(self) -> bool:
        """Returns whether rounding grows in this program.

        The size of its effects is then a matter of chance, and one control is too few.
        """
        return max(self._controls[0].values(), default=0.0) > self._tolerance / 10

    def _unsteady(self) -> Table:
        """Returns the differences of an unchanged second run before rounding can grow.

        Such a difference comes from the program itself, such as from numbers without a seed.
        """

        def early(table: Table) -> Table:
            return {
                key: value
                for key, value in table.items()
                if value > self._tolerance
                and (key[0] == 0 or (key[0] == 1 and key[1] in _OF_FIRST_STEP))
            }

        # The control is a second run already, from moved weights: only if it differs early is an
        # unchanged second run worth its time.
        suspicious = early(self._controls[0])
        return early(self._compared(train(self._program))) if suspicious else {}

    def _unrepeatable(self, unsteady: Table) -> Report:
        parted, _ = self._listed(unsteady, unsteady)
        at_start = parted[0].step == 0
        return self._report(
            parted,
            (),
            "",
            f"run twice from the same seeds, {parted[0].part} differ. "
            + ("`build` draws" if at_start else "The program draws")
            + " from a generator without a seed (such as `numpy.random.default_rng()`), asks a "
            "clock, or keeps something from one call of `build` to the next. Give it a seed, and "
            "make all anew in `build`.",
        )

    def _replicas_differ(self, run: Run) -> bool:
        last = [
            copies
            for (part, _), copies in run.steps[-1].items()
            if part in (readings.WEIGHTS, readings.STATE, readings.OPTIMIZER)
        ]
        local = range(max(map(len, last), default=1))
        bits = {str(_checksum([each[min(i, len(each) - 1)] for each in last])) for i in local}
        posts = self._processes.all_gather("the bits of `tfdp.verify`", sorted(bits))
        return len({text for post in posts for text in post.value}) > 1

    def _listed(
        self, table: Table, found: Table
    ) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
        """Returns the first difference of each part that differs, and the largest of each other."""
        noise = run_differences.of_controls(self._controls)
        parted: dict[str, Difference] = {}
        agreeing: dict[str, Difference] = {}
        by_size = sorted(found.items(), key=lambda item: (item[0][0], -item[1]))
        for (step, part, path), size in by_size:
            control = noise.get((part, path), 0.0)
            parted.setdefault(part, Difference(part, path, step, size, control))
        for (step, part, path), size in sorted(table.items(), key=lambda item: -item[1]):
            if part not in parted:
                control = noise.get((part, path), 0.0)
                agreeing.setdefault(part, Difference(part, path, step, size, control))
        order = readings.PARTS.index
        return (
            tuple(sorted(parted.values(), key=lambda d: (d.step, order(d.part)))),
            tuple(sorted(agreeing.values(), key=lambda d: order(d.part))),
        )

    # ---- why

    def _explained(
        self, parted: tuple[Difference, ...], replicas_differ: bool
    ) -> tuple[tuple[Difference, ...], str, str]:
        first = parted[0]
        cause, reason = reasons.of_part(first, self._reference.model)
        if compiler_of(self._strategy) is not None:
            return parted, cause, reasons.of_compiled(first) or reason
        meant = reasons.by_design(first, self._strategy, self._reference.model)
        if meant:
            reason = meant
        elif first.step and first.part in (readings.LOSS, readings.STATE):
            found = self._first_layer(first.step)
            if found is not None:
                difference, cause, reason = found
                parted = difference, *parted
        synchronization = getattr(self._strategy, "synchronization", None)
        if replicas_differ and (synchronization is None or not synchronization.replicas_differ):
            reason += " The replicas hold different values from here on, which nothing mends."
        return parted, cause, reason

    def _first_layer(self, step: int) -> tuple[Difference, str, str] | None:
        """Returns the first layer whose outputs differ in a step; inner layers come first."""
        reference = _watched(self._program, step)
        run = _watched(self._program, step, self._strategy)
        expected, controls = reference.in_order(), []
        if self._amplifies():
            control = _watched(self._program, step, move=_MOVES[0])
            noise = probes.differences(expected, control.in_order())
            controls.append(self._of_all_ranks(noise))
        table = self._of_all_ranks(probes.differences(expected, run.in_order()))
        found = run_differences.apart(table, controls, self._tolerance)
        if not found:
            return None
        _, _, path = key = min(found)
        by_rounding = run_differences.of_controls(controls).get(key[1:], 0.0)
        difference = Difference(_LAYERS, path, step, found[key], by_rounding)
        (layer, expected_operations), (_, operations) = reference.traced[path], run.traced[path]
        own = source_lines.place(layer) != ""
        line = source_lines.first_other_line(expected_operations, operations) if own else ""
        return difference, *reasons.of_layer(path, layer, line)


def _watched(program: TrainedProgram, step: int, *args: Any, **options: Any) -> probes.LayerCalls:
    calls = train(program, *args, watch=step, **options).calls
    assert calls is not None
    return calls


def _check_same_model(one: Run, other: Run) -> None:
    before = {id(variable) for variable in one.model.variables}
    for variable in other.model.variables:
        if id(variable) in before:
            raise ValueError(
                "`build` must make a new model each time, and all that is in it, but the variable "
                f"{variable.path!r} is the same one twice. Make its layer within `build`."
            )
    parts = (readings.WEIGHTS, readings.STATE)
    shapes = [
        {key: copies[0].shape for key, copies in run.steps[-1].items() if key[0] in parts}
        for run in (one, other)
    ]
    for _, path in sorted({*shapes[0], *shapes[1]}):
        first, second = ([s[p, path] for p in parts if (p, path) in s] for s in shapes)
        if first != second:
            raise ValueError(
                f"`build` must make the same model each time, but its variable {path!r} has "
                f"{_shape(first)} the first time and {_shape(second)} another time. Let nothing in "
                "`build` depend on earlier calls, or on the number of replicas."
            )


def _shape(found: Sequence[tuple[int, ...]]) -> str:
    return f"shape {list(found[0])}" if found else "no place"


def _checksum(arrays: Sequence[np.ndarray]) -> int:
    checksum = 0
    for array in arrays:
        is_text = array.dtype == object  # of which NumPy has addresses
        bits = repr(array.tolist()).encode() if is_text else np.ascontiguousarray(array).tobytes()
        checksum = zlib.crc32(bits, checksum)
    return checksum
