"""What every replica computes on the whole batch, said once."""

import logging
from collections.abc import Sequence

from tfdp.base import words
from tfdp.partition import Batch, ReplicaProgram
from tfdp.partition.program_record import PRODUCTS, Whole
from tfdp.partition.sizes import divided

# What was said: the type of an operation, where it is, and why.
_told: set[tuple[str, str, str]] = set()


def tell(program: ReplicaProgram) -> None:
    """Says once of each cause what it costs that an operation is computed whole.

    Nothing is said of what leaves all products divided and has nothing sent for it.
    """
    report = program.report
    if report.num_replicas == 1:
        return
    products = [each for each in report.computed if each.operation in PRODUCTS]
    groups: dict[tuple[str, str, str], list[Whole]] = {}
    for found in report.whole:
        groups.setdefault((found.operation, found.place, found.reason), []).append(found)
    for key, causes in groups.items():
        left = sum(any(each.cause is cause for cause in causes) for each in products)
        sent = [cause for cause in causes if cause.gathered]
        if key in _told or not (left or sent):
            continue
        _told.add(key)
        after = (
            f"With it each computes all of {left} of the step's {len(products)} products, "
            f"{words.percent(left / len(products))}, which are divided otherwise. "
            if left
            else "The step's products stay divided. "
        )
        logging.getLogger("tfdp").warning(
            "%s in %s is computed by each replica for the whole batch%s. %s%s",
            *(causes[0].operation, causes[0].place, _sent(sent, program.batches), after),
            _remedy(causes[0]),
        )


def _sent(causes: Sequence[Whole], batches: Sequence[Batch]) -> str:
    """Says what is sent for operations in each step."""
    if not causes:
        return ""
    sizes = [cause.gathered_bytes for cause in causes]
    for batch in batches:
        each = [divided(size, batch.length) for size in sizes]
        if all(isinstance(size, int) for size in each):
            return f", and {words.size(sum(each))} of each example are sent for it"
    return ", and what it is given of each example is sent for it"


def _remedy(cause: Whole) -> str:
    if cause.has_texts:
        return "To have it divided, move it into the dataset's `map`."
    return (
        "To have it divided, move it into the dataset's `map`, or write it with operations that "
        "take each example by itself."
    )
