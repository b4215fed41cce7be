"""Arrays between the host and the devices, of one process or of all."""

import mmap
import random
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from tfdp.base import rank_comparison
from tfdp.base.words import ranks_in_words
from tfdp.communication import collectives
from tfdp.strategy.xla import pending


def placed(values: Sequence[np.ndarray], shardings: Sequence[NamedSharding]) -> list[Any]:
    """Returns arrays on the devices, of values that every process has whole."""
    with jax.enable_x64(True):
        if jax.process_count() == 1:
            return list(jax.device_put(list(values), list(shardings)))
        return [
            jax.make_array_from_callback(value.shape, sharding, value.__getitem__)
            for value, sharding in zip(values, shardings, strict=True)
        ]


def placed_in_parts(own: np.ndarray, sharding: NamedSharding, shape: tuple[int, ...]) -> Any:
    """Returns an array of this shape, of which every process has what its own devices hold."""
    with jax.enable_x64(True):
        return jax.make_array_from_process_local_data(sharding, own, shape)


def untouched(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    """Returns zeros that take no memory before somebody writes them.

    TensorFlow's own are written, and its allocator keeps the memory of what was freed.

    >>> untouched(tf.TensorShape([2]), tf.bfloat16)
    <tf.Tensor: shape=(2,), dtype=bfloat16, numpy=array([0, 0], dtype=bfloat16)>
    """
    memory = mmap.mmap(
        -1, shape.num_elements() * dtype.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    words = np.frombuffer(memory, f"i{dtype.size}").reshape(shape)
    with tf.device("CPU:0"):
        return tf.bitcast(tf.experimental.dlpack.from_dlpack(words.__dlpack__()), dtype)


def fetched(array: Any) -> np.ndarray:
    """Returns the whole of an array; where processes have shards of it all must ask together."""
    if array.is_fully_replicated:
        return np.asarray(array)
    if array.is_fully_addressable:
        found = np.empty(array.shape, array.dtype)
        for shard in array.addressable_shards:  # of the array itself JAX would keep a copy
            if shard.replica_id == 0:
                found[shard.index] = shard.data
        return found
    with jax.enable_x64(True), pending.call():
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def of_first(value: np.ndarray) -> np.ndarray:
    """Returns the first process' value; all must call it together."""
    if jax.process_count() == 1:
        return value
    with jax.enable_x64(True), pending.call():
        found = multihost_utils.broadcast_one_to_all(value)
    return np.asarray(found).astype(value.dtype).reshape(value.shape)


def check_alike(tensors: Sequence[tf.Tensor]) -> None:
    """Checks that all processes give a step the same batch; all must call it together.

    Raises:
      RankMismatchError: They do not. It names the processes.
    """
    if jax.process_count() == 1:
        return
    checksum = 0
    for tensor in tensors:
        checksum = zlib.crc32(np.asarray(tensor).tobytes(), checksum)
    with jax.enable_x64(True), pending.call():
        every = np.asarray(multihost_utils.process_allgather(np.int64(checksum))).ravel()
    others = ranks_in_words(rank for rank, each in enumerate(every) if each != every[0])
    if (every != every[0]).any():
        raise rank_comparison.mismatch(
            f"Rank {jax.process_index()}: ",
            "all ranks must give a step the same whole batch",
            f"the batch on {others} is another one than on rank 0",
            "Call `keras.utils.set_random_seed` with the same number in each, or give `fit` a "
            "`tfdp.data.pipeline`, of which each process reads its own rows.",
        )


def seed_alike() -> None:
    """Gives all processes the seeds of the first one, as `keras.utils.set_random_seed` sets them.

    In a process that is alone nothing changes. Draws of Python and NumPy begin anew.
    """
    if jax.process_count() == 1:
        return
    seed = collectives.global_seed()
    if seed is None:
        seed = random.SystemRandom().randrange(2**31)
    keras.utils.set_random_seed(int(of_first(np.array(seed, np.int64))))
