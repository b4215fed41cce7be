"""Files that callbacks write on their own: rank 0's alone are kept."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Any

import keras

from tfdp.files import temporary_folder
from tfdp.hooks import hook
from tfdp.replicas import processes_of


@hook(keras.callbacks.CSVLogger, "on_train_begin")
def csv_logger(original: Callable[..., Any], self: Any, logs: Any = None) -> Any:
    """The other ranks' rows go nowhere."""
    if processes_of(self.model.distribute_strategy).rank != 0:
        self.filename = os.devnull
    return original(self, logs)


@hook(keras.callbacks.TensorBoard, "set_model")
def tensorboard(original: Callable[..., Any], self: Any, model: Any) -> Any:
    """The other ranks' events go into a folder that is deleted when they end."""
    if processes_of(model.distribute_strategy).rank != 0:
        kept = contextlib.ExitStack()
        self.log_dir = kept.enter_context(temporary_folder())
        weakref.finalize(self, kept.close)
    return original(self, model)
