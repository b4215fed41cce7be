"""Recording in a running step: its graph writes instants and sums, which Python reads later.

`Telemetry` asks for the recording and reads it. The Keras adapter, the collectives and the
optimizers write, and know nothing of each other. A function that was made without a recorder pays
nothing.
"""

from tfdp.base.recording.recorder import Reading, Recorder, copies_of
from tfdp.base.recording.tap import (
    Tap,
    current,
    meeting,
    tapped,
    taps_of,
    trust_ratio_observer,
    watching_buckets,
)
