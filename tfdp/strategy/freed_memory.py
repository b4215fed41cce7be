"""Memory that a step frees stays with the process, for the next step to use."""

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator

import tensorflow as tf

from tfdp.base import machine

# The variables that set these parameters at a program's start, with the parameters' numbers in
# glibc's <malloc.h>, and what they are set to.
_KEPT_BYTES = 2**30
_PARAMETERS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, _KEPT_BYTES),
    "MALLOC_TRIM_THRESHOLD_": (-1, _KEPT_BYTES),
    "MALLOC_ARENA_MAX": (-8, 1),
}

# With so many cores an arena for all is one lock for all: of 16 threads that take blocks of 2 KB on
# 16 cores each needs a hundred times as long.
_MANY_CORES = 5


def keep_freed_memory() -> None:
    """Tells glibc to keep freed blocks, or what the user's `MALLOC_...` variables say.

    Otherwise each step returns its gradients' memory to the kernel, and the next step has a page
    fault for each 4 KiB of it. A network of 12.6 million parameters takes a third more time so.
    On few cores all threads take from one arena: what the backward pass has freed in one of
    TensorFlow's threads would not be there for another, such as those that go on after a
    collective.

    TensorFlow 2.21 itself has glibc return all blocks of 128 KiB or more, from the first
    dataset of a process that a Python function feeds. A strategy's iterators on several devices are
    made of such datasets. It does so once, so one is made here before.

    Elsewhere than on Linux with glibc, and in a graph of TensorFlow 1, this does nothing.
    """
    if tf.executing_eagerly():
        _keep()


@functools.cache
def _keep() -> None:
    with contextlib.suppress(OSError, AttributeError, ValueError):
        set_parameter = ctypes.CDLL("libc.so.6").mallopt
        for _ in tf.data.Dataset.from_generator(_nothing, output_signature=tf.TensorSpec(())):
            pass
        parameters = dict(_PARAMETERS)
        if len(machine.cores()) >= _MANY_CORES:
            del parameters["MALLOC_ARENA_MAX"]  # glibc has what the user says already
        for name, (number, value) in parameters.items():
            set_parameter(number, int(os.environ.get(name, value)))


def _nothing() -> Iterator[float]:
    return iter(())
