"""The function `tfdp.enable_determinism`."""

import operator
import os
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.determinism import _keras, process_seed

_SEEDS = 2**32  # as many as `numpy.random.seed` takes

# With one of these cuBLAS gives each stream memory of its own. Without, it may choose other kernels
# where several streams of a GPU are busy, as with replicas on parts of one.
_WORKSPACE, _WORKSPACES = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")


def enable_determinism(seed: int) -> None:
    """Makes a repeated run bit-equal: weights and logs, on one machine and cluster shape.

    Call it first, after the imports, and on every rank with the same seed. It has four effects:

    1. `keras.utils.set_random_seed(seed)`: initial weights, dropout, augmentation by layers,
       `fit`'s shuffling, `Dataset.shuffle`, Python's `random` and NumPy's global generator follow
       from the seed.
    2. `tf.config.experimental.enable_op_determinism()`: operations whose threads would add values
       as they arrive add them in a fixed order, or raise `UnimplementedError`; `tf.data` keeps its
       order whatever `deterministic=` says; random operations without any seed raise. For GPUs
       `tfdp.XLAStrategy` has XLA compile only deterministic programs.
    3. Strategies compare the seed over the ranks, and refuse `topology="auto"` unless
       `TFDP_TOPOLOGY_FILE` keeps its decision: "auto" measures, and other measurements would lead
       to another order of summation. The order of the other topologies is always the same.
    4. `CUBLAS_WORKSPACE_CONFIG` is set to ":4096:8", unless you have set it: only then does cuBLAS
       choose the same kernels in each run on a GPU that computes for several replicas at a time.
       You need not set `TF_DETERMINISTIC_OPS`, which TensorFlow reads in place of 2.

    Equal runs need the same program, data, versions, number of replicas and processes, kind of
    machine and number of threads (which follow from the cores that a process may use, unless
    `TF_NUM_INTRAOP_THREADS` is set); `tfdp.write_manifest` records these. This function cannot
    control generators without a seed (`numpy.random.default_rng()`), the order of Python's sets of
    strings (set `PYTHONHASHSEED`), or threads of the program that draw from one generator in turn,
    as those of a `PyDataset` with `workers` above 1: derive a seed from the index.

    Cost: on CPU a step takes as long as without; GPUs have slower algorithms for some operations.
    `tf.data` runs a map that calls Python, or is random by state, on one core. Where one map calls
    Python, `tf.data` runs all other maps on one core, too, and prefetches nothing.
    `tfdp.data.pipeline` calls Python for its order: on 2 cores its `map_fn` went through half as
    many examples a second.

    A second call sets the seeds again, as for a second training in one process.

    Args:
      seed: A whole number from 0 to 2**32 - 1.

    Raises:
      TypeError: `seed` is no whole number.
      ValueError: `seed` is out of range, or `CUBLAS_WORKSPACE_CONFIG` has a value with which cuBLAS
        does not repeat itself.
      RuntimeError: The first call comes too late: a strategy of tfdp or an object of Keras was
        made, which may have drawn random numbers or measured.

    >>> import subprocess, sys
    >>> program = '''
    ... import keras, tfdp
    ... for _ in range(2):
    ...     tfdp.enable_determinism(1)
    ...     print(keras.layers.Dense(1)(keras.random.normal([1, 3])))
    ... '''
    >>> first, again = subprocess.check_output([sys.executable, "-c", program]).splitlines()
    >>> first == again
    True
    >>> enable_determinism(-1)
    Traceback (most recent call last):
      ...
    ValueError: `seed` must be from 0 to 2**32 - 1; received -1. Use ...
    """
    number = _checked(seed)
    if process_seed.chosen_seed() is None:
        _check_comes_first()
    _choose_workspace()
    keras.utils.set_random_seed(number)
    _keras.forget_global_generator()
    tf.config.experimental.enable_op_determinism()
    process_seed.choose_seed(number)


def _checked(seed: Any) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        number = None
    if number is None or isinstance(seed, bool):
        raise TypeError(
            f"`seed` must be a whole number; received {seed!r}. Use `tfdp.enable_determinism(1)`."
        )
    if not 0 <= number < _SEEDS:
        raise ValueError(
            f"`seed` must be from 0 to 2**32 - 1; received {number}. Use "
            f"`tfdp.enable_determinism({number % _SEEDS})`."
        )
    return number


def _check_comes_first() -> None:
    if process_seed.strategy_was_made():
        raise RuntimeError(
            "`tfdp.enable_determinism` must be called before a strategy is made, but this process "
            "has made one. Call it right after the imports, before `tfdp.DataParallelStrategy()`."
        )
    made = _keras.named_objects()
    if made:
        raise RuntimeError(
            "`tfdp.enable_determinism` must be called before anything of Keras is made, which may "
            f"draw random numbers, but this process has made: {', '.join(made[:5])}. Call it right "
            "after the imports, or do `keras.utils.clear_session()` first and make all of it anew."
        )


def _choose_workspace() -> None:
    """Has cuBLAS, which reads the variable when it first computes, repeat itself."""
    chosen = os.environ.setdefault(_WORKSPACE, _WORKSPACES[0])
    if chosen not in _WORKSPACES:
        raise ValueError(
            f"{_WORKSPACE} must be {' or '.join(_WORKSPACES)}, with which cuBLAS gives the same "
            f"bits in each run, but it is {chosen!r}. Do `unset {_WORKSPACE}`, and "
            "`tfdp.enable_determinism` sets it."
        )
