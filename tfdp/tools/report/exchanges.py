"""The exchanges of a step, as tables of the page, from a partitioned program's `explain.json`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfdp.base import words

FILE = "explain.json"

COLLECTIVES = ("number", "kind", "bytes", "sent", "needs", "largest", "asked for by")
WHOLE = ("operation", "line", "why", "times", "gathered")
LOCAL = ("where", "operations", "products")

_WITHIN = {"branch": " in a branch", "loop": " in each round of a loop"}


@dataclasses.dataclass(frozen=True)
class Exchanges:
    """What a step exchanges, in words.

    Args:
      sentences: The summary.
      collectives: A row of `COLLECTIVES` for each.
      whole: A row of `WHOLE` for each line whose operations are computed on the gathered batch.
      local: Rows of `LOCAL`.
    """

    sentences: tuple[str, ...]
    collectives: tuple[tuple[str, ...], ...]
    whole: tuple[tuple[str, ...], ...]
    local: tuple[tuple[str, ...], ...]


def exchanges(values: Mapping[str, Any]) -> Exchanges:
    """Returns the tables of an explanation, the object in its file.

    Raises:
      AttributeError, KeyError, OverflowError, TypeError, ValueError: It is no explanation.

    >>> amount = {"operations": 9, "products": 2}
    >>> group = {"amount": amount, "types": {}}
    >>> found = exchanges({"summary": ["Nothing."], "collectives": [], "whole": [],
    ...                    "share": group, "everywhere": group, "gathered": group})
    >>> found.local[0]
    ('each replica on its shard of the batch', '9', '2')
    """
    groups = {
        "each replica on its shard of the batch": values["share"],
        "every replica alike, on replicated tensors": values["everywhere"],
        "of these, after what was gathered": values["gathered"],
    }
    return Exchanges(
        sentences=tuple(map(str, values["summary"])),
        collectives=tuple(_collective(each) for each in values["collectives"]),
        whole=tuple(
            (
                str(each["operation"]),
                str(each["line"]),
                str(each["reason"]),
                words.number(each["times"]),
                str(each["size"]) if each["tensors"] else "nothing more",
            )
            for each in values["whole"]
        ),
        local=tuple(
            (where, *(words.number(group["amount"][key]) for key in ("operations", "products")))
            for where, group in groups.items()
        ),
    )


def _collective(values: Mapping[str, Any]) -> tuple[str, ...]:
    needs = ", ".join(words.number(number) for number in values["needs"])
    return (
        words.number(values["number"]),
        f"{values['kind']}, {words.count(values['tensors'], 'tensor')}"
        + _WITHIN.get(values["within"], ""),
        str(values["size"]),
        words.size(values["bytes_sent"]),
        needs or "–",
        str(values["largest"]),
        str(values["asked_by"]),
    )
