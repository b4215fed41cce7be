"""TensorFlow's `MultiWorkerMirroredStrategy`, patched just enough for Keras 3 to start.

Private Keras names, tested with Keras 3.15.1; `tests/bench/test_multi_worker.py` fails when one of
them moves. Only the benchmark uses this.
"""

from __future__ import annotations

import tensorflow as tf
from keras.src.backend.tensorflow import trainer


def strategy() -> tf.distribute.Strategy:
    """Returns the stock strategy over the cluster in `TF_CONFIG`, with which `fit` starts.

    Two patches are needed. The symbolic build is left out, as it reduces a nested first batch
    (ValueError). And Keras is not told that the strategy has many workers, or it reduces scalars
    over an axis.
    """
    trainer.TensorFlowTrainer._maybe_symbolic_build = lambda self, *args, **kwargs: None
    trainer._collective_all_reduce_multi_worker = lambda strategy: False
    return tf.distribute.MultiWorkerMirroredStrategy()
