"""The warnings of programs that are compiled: one more, for idle devices, or for a long time."""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.strategy.xla.mesh_sharding import Layouts

# The specifications of a program's arguments, and how many steps it runs in one call.
Kind = tuple[Sequence[tf.TensorSpec], int]

_LENGTHS = "examples that differ in length"


def compiled_once_more(
    strategy: Any, name: str, specs: Sequence[tf.TensorSpec], steps: int, former: Sequence[Kind]
) -> None:
    """Says for what a function is compiled once more, and what would need no other program.

    Examples that differ in length, or images in size, are said once for a strategy: `fit`,
    `evaluate` and `predict` meet each of them.

    Args:
      strategy: The strategy.
      name: The function's name.
      specs: The specifications of the arguments.
      steps: How many times it runs in one call.
      former: What it was compiled for before.
    """
    of_shapes = [(each, count) for each, count in former if _shapes(each) == _shapes(specs)]
    of_dtypes = [(each, count) for each, count in of_shapes if _dtypes(each) == _dtypes(specs)]
    if not of_shapes and _differ_beyond_rows(specs, former):
        if _LENGTHS in strategy.adapter_state.warned_about:
            return
        strategy.adapter_state.warned_about.add(_LENGTHS)
        said = (
            f"arguments of the shapes {_shapes(specs)}, and so for each other shape: XLA compiles "
            "for fixed sizes. Let examples have few lengths: "
            "`dataset.bucket_by_sequence_length(..., pad_to_bucket_boundary=True)`, or "
            "`padded_batch(size, padded_shapes=...)`; resize images to one size."
        )
    elif not of_shapes:
        said = (
            f"arguments of the shapes {_shapes(specs)}: XLA compiles for fixed sizes. Batches of "
            "one size, as of `dataset.batch(size, drop_remainder=True)`, need one program."
        )
    elif not of_dtypes:
        said = (
            f"arguments of the dtypes {_dtypes(specs)}, and was for {_dtypes(of_shapes[-1][0])}. "
            "Data of the same dtypes, also in `compile_ahead`, need one program."
        )
    elif steps not in [count for _, count in of_dtypes]:
        said = (
            f"{steps} of its steps in one call, and was for {of_dtypes[-1][1]}. A number of "
            "batches that `steps_per_execution` divides needs one program."
        )
    else:
        said = (
            "arguments of another structure, or with other values of Python. Give what changes as "
            "a tensor."
        )
    logging.getLogger("tfdp").warning("%s is compiled once more, for %s", name, said)


def computed_whole(specs: Sequence[tf.TensorSpec], layouts: Layouts) -> None:
    """Says which batches the devices do not divide, so that each computes the whole."""
    shards = layouts.num_batch_shards
    for rows in sorted({spec.shape[0] for spec in specs if spec.shape.rank}):
        if not layouts.divide(rows):
            logging.getLogger("tfdp").warning(
                "A batch of %d rows is computed whole by each of the %d devices, which do not "
                "divide it. Use a multiple of %d.",
                *(rows, layouts.num_devices, shards),
            )


def computed_on_host(strategy: Any, places: Sequence[str]) -> None:
    """Says once for a strategy which layers, or lines, the host computes for the devices."""
    told = strategy.adapter_state.warned_about
    new = [place for place in places if place not in told]
    told.update(new)
    if new:
        logging.getLogger("tfdp").warning(
            "The host computes before each step, batch by batch, what XLA cannot and what depends "
            "on nothing but the batch: %s. In the input pipeline (`dataset.map`) it would be "
            "computed for several batches at a time.",
            ", ".join(new),
        )


@contextlib.contextmanager
def compiling(layouts: Layouts, seconds: float = 60.0) -> Iterator[None]:
    """Says once that a program is still being compiled, if it is after so many seconds."""
    timer = threading.Timer(
        seconds,
        logging.getLogger("tfdp").warning,
        (
            "XLA still compiles a program for %s, after %.0f s; large models take minutes, once "
            "for each size of a batch.",
            layouts,
            seconds,
        ),
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _differ_beyond_rows(specs: Sequence[tf.TensorSpec], former: Sequence[Kind]) -> bool:
    """Returns whether no former arguments have these sizes but for their first axes."""
    sizes = [tuple(spec.shape[1:]) for spec in specs]
    return sizes not in [[tuple(spec.shape[1:]) for spec in each] for each, _ in former]


def _shapes(specs: Sequence[tf.TensorSpec]) -> list[tuple[int, ...]]:
    return [tuple(spec.shape) for spec in specs]


def _dtypes(specs: Sequence[tf.TensorSpec]) -> list[str]:
    return [spec.dtype.name for spec in specs]
