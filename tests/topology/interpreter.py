"""Runs schedules on NumPy arrays, one per rank: what an engine must do, in the fewest words."""

import numpy as np

from tfdp import topology


def run(schedule, values):
    """What each rank holds after the schedule, when it begins with its row of `values`."""
    held = [np.array(value) for value in values]
    for phase in schedule.phases:
        if isinstance(phase, topology.AllReduce):
            for group in phase.groups:
                total = sum(held[rank] for rank in group)
                for rank in group:
                    held[rank] = total.copy()
        else:
            exchange(schedule, phase, held)
    return held


def exchange(schedule, phase, held):
    pieces = [schedule.slice_of(transfer.chunks, held[0].size) for transfer in phase.transfers]
    sent = {
        transfer: held[transfer.source][piece].copy()
        for transfer, piece in zip(phase.transfers, pieces, strict=True)
    }
    assert len(sent) == len(phase.transfers), "the same transfer twice"
    for transfer in sorted(sent, key=lambda transfer: transfer.source):
        own = held[transfer.target][schedule.slice_of(transfer.chunks, held[0].size)]
        if transfer.reduce:
            own += sent[transfer]
        else:
            own[:] = sent[transfer]
