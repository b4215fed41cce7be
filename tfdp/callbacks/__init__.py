"""Keras callbacks for checkpoints, telemetry, the wait for input and the loss scale.

Importing this package loads neither TensorFlow nor Keras.
"""

from typing import TYPE_CHECKING

from tfdp.base.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tfdp.callbacks.checkpoint_callback import Checkpoint
    from tfdp.callbacks.input_wait import InputMonitor
    from tfdp.callbacks.loss_scale_monitor import LossScaleMonitor
    from tfdp.callbacks.telemetry import Telemetry

__all__ = [
    "Checkpoint",
    "InputMonitor",
    "LossScaleMonitor",
    "Telemetry",
]

_LAZY = {
    "Checkpoint": ("tfdp.callbacks.checkpoint_callback", "Checkpoint"),
    "InputMonitor": ("tfdp.callbacks.input_wait", "InputMonitor"),
    "LossScaleMonitor": ("tfdp.callbacks.loss_scale_monitor", "LossScaleMonitor"),
    "Telemetry": ("tfdp.callbacks.telemetry", "Telemetry"),
}

__getattr__, __dir__ = lazy_names(globals(), _LAZY)
