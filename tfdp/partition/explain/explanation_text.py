"""An explanation as plain text of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tfdp.base.words import count, size

if TYPE_CHECKING:
    from tfdp.partition.explain.explanation import (
        Amount,
        CollectiveFacts,
        CollectiveGroup,
        Explanation,
        GatheredFacts,
    )

_COLUMNS = 80

# So many types of operations are named of those that are computed in one place.
_MOST_TYPES = 12

_KINDS = {
    "sum": "sum of",
    "gather": "gather of",
    "from first": "from the first replica,",
    "sum of parts": "sum of",
    "gather of parts": "gather of",
    "update": "per-replica code on",
}

_WITHIN = {"branch": "in a branch, if it is taken", "loop": "in a loop, in each round"}


def text(explanation: Explanation) -> str:
    """Returns an explanation as plain text: a summary, and what it is made of."""
    title = f"What a step exchanges, on {count(explanation.replicas, 'replica')}"
    sections = [
        [title.upper(), "", *_wrapped(" ".join(summary(explanation)))],
        ["COLLECTIVES, OF WHICH EACH BEGINS AFTER THE ONE BEFORE", *_collectives(explanation)],
        ["COMPUTED ON THE GATHERED BATCH, BY EVERY REPLICA", *_whole(explanation)],
        ["COMPUTED LOCALLY", *_local(explanation)],
    ]
    return "\n\n".join("\n".join(section) for section in sections)


def summary(explanation: Explanation) -> list[str]:
    """Returns a few sentences on what is sent, and what is computed on the gathered batch."""
    collectives, replicas = explanation.collectives, explanation.replicas
    found = [f"A step on {count(replicas, 'replica')} has {count(len(collectives), 'collective')}."]
    if collectives:
        found[0] = f"{found[0][:-1]}, in which each replica sends {_sent(explanation)}."
    if explanation.chain > 1:
        found.append(
            f"{explanation.chain} of them form a chain in which each needs the one before: their "
            "times add up."
        )
    normalizing = [each.normalization_bytes for each in collectives if each.normalization_bytes]
    if normalizing:
        found.append(
            f"{len(normalizing)} of them bring plain BatchNormalization the whole batch's "
            f"statistics and their gradients, {size(sum(normalizing))}, for which the passes wait: "
            'batch_normalization="per_replica" of the strategy saves that, and trains otherwise '
            "than one device."
        )
    number = sum(each.times for each in explanation.whole)
    after = explanation.gathered.amount
    if number:
        verb = "is" if number == 1 else "are"
        found.append(
            f"{count(number, 'operation')} {verb} computed on the gathered batch, by every replica."
        )
    else:
        found.append("No operation is computed on the gathered batch.")
    if after.operations:
        found.append(f"{amount(after)} go on with what was gathered, on every replica.")
    if explanation.undivided:
        found.append(
            f"{explanation.undivided} of {count(explanation.total.products, 'product')} "
            f"{'is' if explanation.undivided == 1 else 'are'} not divided."
        )
    where = (
        "the replica computes all"
        if explanation.replicas == 1
        else f"{_bare(explanation.share.amount)} are computed on each replica's shard of the batch"
    )
    found.append(
        f"Of {amount(explanation.total)}, {where}. Products are matrix products and convolutions."
    )
    return found


def asked_by(facts: CollectiveFacts) -> str:
    """Says which operation asked for a collective, and on which line.

    >>> from types import SimpleNamespace as Facts
    >>> asked_by(Facts(operation="Print", line="a.py:3, in step", why="Print happens once"))
    'Print at a.py:3, in step, which happens once'
    """
    if not facts.operation:
        return f"the end of the step: {facts.why}"
    own = f"{facts.operation} at {facts.line}"
    if facts.why.startswith((f"{facts.operation} at ", f"{facts.operation}, ")):
        return facts.why
    if not facts.why.startswith(f"{facts.operation} "):
        return f"{own}: {facts.why}"
    rest = facts.why.removeprefix(f"{facts.operation} ")
    return f"{own}, which {rest}" if rest.startswith(("is ", "happens ")) else f"{own}, {rest}"


def waits_for(facts: CollectiveFacts) -> str:
    """Says which collectives' results one needs.

    >>> from types import SimpleNamespace as Facts
    >>> waits_for(Facts(needs=(1, 2, 3, 5))), waits_for(Facts(needs=()))
    ('1-3, 5', 'none')
    """
    runs: list[list[int]] = []
    for number in facts.needs:
        if runs and runs[-1][-1] == number - 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"


def amount(found: Amount) -> str:
    """Says how many operations there are, and how many products among them.

    >>> from tfdp.partition.explain.explanation import Amount
    >>> amount(Amount(12, 1)), amount(Amount(1, 0))
    ('12 operations (1 product)', '1 operation')
    """
    products = f" ({count(found.products, 'product')})" if found.products else ""
    return f"{count(found.operations, 'operation')}{products}"


def _bare(found: Amount) -> str:
    return amount(found).replace(" operations", "").replace(" operation", "")


def _sent(explanation: Explanation) -> str:
    said = size(explanation.bytes_sent)
    rounds = [each for each in explanation.collectives if each.within == "loop"]
    if any(each.within == "branch" for each in explanation.collectives):
        said = f"{said}, or less where a branch is not taken"
    if rounds:
        in_rounds = sum(each.bytes_sent or 0 for each in rounds)
        said = f"{said}, and {size(in_rounds)} in each round of loops"
    unknown = sum(each.bytes_sent is None for each in explanation.collectives)
    if unknown:
        said = f"{said}, besides {count(unknown, 'collective')} of sizes that the step brings"
    return said


def _collectives(explanation: Explanation) -> Iterator[str]:
    if not explanation.collectives:
        yield from ("", "  There are none.")
    for facts in explanation.collectives:
        sent = "" if facts.bytes_sent is None else f"; each replica sends {size(facts.bytes_sent)}"
        head = f"{_KINDS[facts.kind]} {count(facts.tensors, 'tensor')}, {facts.size}{sent}"
        yield ""
        yield from _wrapped(head, f"{facts.number:3}  ", 5)
        if facts.within:
            yield from _wrapped(_WITHIN[facts.within], indent=5)
        largest = "the largest is " if facts.tensors > 1 else ""
        yield from _wrapped(f"{largest}{facts.largest}", indent=5)
        yield from _wrapped(f"asked for by {asked_by(facts)}", indent=5)
        needs = f"the results of {waits_for(facts)}" if facts.needs else "no other's result"
        yield from _wrapped(f"needs {needs}", indent=5)


def _whole(explanation: Explanation) -> Iterator[str]:
    if not explanation.whole:
        yield from ("", "  Nothing.")
    for facts in explanation.whole:
        yield ""
        yield from _wrapped(_cost(facts, explanation.replicas), indent=2)
    after = explanation.gathered
    if after.amount.operations:
        yield ""
        yield from _wrapped(
            f"{amount(after.amount)} after what was gathered, which each replica computes on all: "
            f"{_types(after)}",
            indent=2,
        )


def _cost(facts: GatheredFacts, replicas: int) -> str:
    times = f"{facts.times} times " if facts.times > 1 else ""
    sent = (
        f"gathers {count(facts.tensors, 'tensor')}, {facts.size}"
        if facts.tensors and replicas > 1
        else "gathers nothing more"
    )
    return (
        f"{times}{facts.operation} at {facts.line}: {facts.reason}. It {sent}, and each replica "
        f"computes {replicas} times its shard."
    )


def _local(explanation: Explanation) -> Iterator[str]:
    groups: Sequence[tuple[str, CollectiveGroup]] = [
        ("on each replica's shard of the batch", explanation.share),
        ("alike on every replica, on replicated tensors such as weights", explanation.everywhere),
    ]
    if explanation.replicas == 1:
        groups = [("on the replica", explanation.everywhere)]
    for where, group in groups:
        yield ""
        types = f": {_types(group)}" if group.types else ""
        yield from _wrapped(f"{amount(group.amount)} {where}{types}", indent=2)


def _types(group: CollectiveGroup) -> str:
    named = [f"{number} {type_}" for type_, number in list(group.types.items())[:_MOST_TYPES]]
    others = len(group.types) - len(named)
    more = [f"others of {count(others, 'type')}"] if others else []
    return ", ".join([*named, *more])


def _wrapped(said: str, begin: str | None = None, indent: int = 0) -> list[str]:
    """Returns lines; words that are longer than a line are broken, as names may be."""
    blank = " " * indent
    return textwrap.wrap(
        said,
        _COLUMNS,
        initial_indent=blank if begin is None else begin,
        subsequent_indent=blank,
        break_on_hyphens=False,
    )
