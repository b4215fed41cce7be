"""Data-parallel training for Keras 3 on TensorFlow: N replicas train exactly like one device.

>>> import keras, tfdp
>>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
...     model.compile("sgd", "mse")

Importing the package is cheap: TensorFlow is loaded when the first name that needs it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfdp.lazy import lazy_names

if TYPE_CHECKING:
    from tfdp import callbacks, data, errors, optimizers, topology
    from tfdp.strategy.data_parallel import DataParallelStrategy

#: The version of the package.
__version__ = "0.1.0"

__all__ = [
    "DataParallelStrategy",
    "__version__",
    "callbacks",
    "data",
    "errors",
    "optimizers",
    "topology",
]

_LAZY = {
    "DataParallelStrategy": ("tfdp.strategy.data_parallel", "DataParallelStrategy"),
    "callbacks": ("tfdp.callbacks", None),
    "data": ("tfdp.data", None),
    "errors": ("tfdp.errors", None),
    "optimizers": ("tfdp.optimizers", None),
    "topology": ("tfdp.topology", None),
}

__getattr__, __dir__ = lazy_names(globals(), _LAZY)
