"""What a step tells of itself while it runs: instants and sums, written by its graph.

`Telemetry` asks for it and reads it; the Keras adapter, the collectives and the optimizers write,
and know nothing of each other. A function that was made without a recorder pays nothing.
"""

from tfdp.recording.buckets import BucketWatch, Watch
from tfdp.recording.recorder import Reading, Recorder
from tfdp.recording.tap import Tap, current, meeting, tapped, trust_ratio_observer

__all__ = [
    "BucketWatch",
    "Reading",
    "Recorder",
    "Tap",
    "Watch",
    "current",
    "meeting",
    "tapped",
    "trust_ratio_observer",
]
