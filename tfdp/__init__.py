"""Data-parallel training for Keras 3 on TensorFlow: N replicas train exactly like one device.

>>> import keras, tfdp
>>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
>>> with strategy.scope():
...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
...     model.compile("sgd", "mse")

Importing the package is cheap: TensorFlow is loaded when the first name that needs it is used.
"""

from typing import TYPE_CHECKING

from tfdp.base.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tfdp import (
        callbacks,
        compression,
        data,
        errors,
        optimizers,
        synchronization,
        topology,
        verification,
    )
    from tfdp.base.determinism.enable import enable_determinism
    from tfdp.callbacks.manifest.write import write_manifest
    from tfdp.keras.whole_batch import whole_batch
    from tfdp.strategy.data_parallel import DataParallelStrategy
    from tfdp.strategy.xla.xla_strategy import XLAStrategy
    from tfdp.strategy.xla.xla_strategy import XLAStrategy as TPUStrategy
    from tfdp.verification.verify import verify

#: The version of the package.
__version__ = "0.1.0"

__all__ = [
    "DataParallelStrategy",
    "TPUStrategy",
    "XLAStrategy",
    "__version__",
    "callbacks",
    "compression",
    "data",
    "enable_determinism",
    "errors",
    "optimizers",
    "synchronization",
    "topology",
    "verification",
    "verify",
    "whole_batch",
    "write_manifest",
]

_LAZY = {
    "DataParallelStrategy": ("tfdp.strategy.data_parallel", "DataParallelStrategy"),
    "TPUStrategy": ("tfdp.strategy.xla.xla_strategy", "XLAStrategy"),  # its name on TPUs
    "XLAStrategy": ("tfdp.strategy.xla.xla_strategy", "XLAStrategy"),
    "callbacks": ("tfdp.callbacks", None),
    "compression": ("tfdp.compression", None),
    "data": ("tfdp.data", None),
    "enable_determinism": ("tfdp.base.determinism.enable", "enable_determinism"),
    "errors": ("tfdp.errors", None),
    "optimizers": ("tfdp.optimizers", None),
    "synchronization": ("tfdp.synchronization", None),
    "topology": ("tfdp.topology", None),
    "verification": ("tfdp.verification", None),
    "verify": ("tfdp.verification.verify", "verify"),
    "whole_batch": ("tfdp.keras.whole_batch", "whole_batch"),
    "write_manifest": ("tfdp.callbacks.manifest.write", "write_manifest"),
}

__getattr__, __dir__ = lazy_names(globals(), _LAZY)
