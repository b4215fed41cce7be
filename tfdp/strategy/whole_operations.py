"""What every replica computes on the whole batch, said once."""

from __future__ import annotations

import logging

from tfdp.partition import ReplicaProgram

# What was said: the type of an operation, its line, and why.
_told: set[tuple[str, str, str]] = set()


def tell(program: ReplicaProgram) -> None:
    """Says once for each type and line what every replica computes on whole tensors."""
    for found in program.report.whole:
        key = found.operation, found.line, found.reason
        if key not in _told and program.report.num_replicas > 1:
            _told.add(key)
            logging.getLogger("tfdp").warning(
                "%s at %s is computed on the whole batch by every replica, since %s. It is right, "
                "costs what one device needs, and %s bytes are gathered for it in each step.",
                *(*key, "unknown" if found.gathered_bytes is None else found.gathered_bytes),
            )
