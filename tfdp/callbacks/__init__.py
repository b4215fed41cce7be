"""Keras callbacks that report what only tfdp or the optimizer knows."""

from tfdp.callbacks.input_wait import InputMonitor
from tfdp.callbacks.loss_scale import LossScaleMonitor

__all__ = ["InputMonitor", "LossScaleMonitor"]
