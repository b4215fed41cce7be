"""Keras callbacks that report what only tfdp, the data or the optimizer knows."""

from tfdp.callbacks.checkpoint import Checkpoint
from tfdp.callbacks.input_wait import InputMonitor
from tfdp.callbacks.loss_scale import LossScaleMonitor
from tfdp.callbacks.telemetry import Telemetry

__all__ = ["Checkpoint", "InputMonitor", "LossScaleMonitor", "Telemetry"]
