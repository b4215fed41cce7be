"""The hooks of callbacks that write files by themselves: only rank 0's files are kept."""

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
    """Lets the ranks other than 0 write their rows to the null device."""
    if processes_of(self.model.distribute_strategy).rank != 0:
        self.filename = os.devnull
    return original(self, logs)


@hook(keras.callbacks.TensorBoard, "set_model")
def tensorboard(original: Callable[..., Any], self: Any, model: Any) -> Any:
    """Lets the ranks other than 0 write their events to a folder that is deleted at their end."""
    if processes_of(model.distribute_strategy).rank != 0:
        kept = contextlib.ExitStack()
        self.log_dir = kept.enter_context(temporary_folder())
        weakref.finalize(self, kept.close)
    return original(self, model)
