"""The numbers of a replica's own examples out of one stateless draw, without drawing the others.

TensorFlow fills a tensor in order from Philox, a generator whose groups of numbers are functions
of a counter (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
doi:10.1145/2063384.2063405), on CPUs and GPUs, compiled by XLA or not. A replica adds to the
counter what the examples before its own use up.
"""

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from tfdp.partition.emit.arithmetic import Arithmetic, Operand
from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import Sharded
from tfdp.partition.rules.registry import Step
from tfdp.partition.sizes import SizeLike

# Values of tf.random.Algorithm; what is selected is Philox on all devices but TPUs.
PHILOX, AUTO_SELECT = 1, 3


def is_philox(algorithm: int) -> bool:
    """Returns whether a stateless draw by an algorithm is one from Philox."""
    if algorithm == AUTO_SELECT:
        return not tf.config.list_logical_devices("TPU")
    return algorithm == PHILOX


def own_rows(
    step: Step,
    layout: Sharded,
    shape: Sequence[SizeLike | None],
    type_: str,
    state: list[Output],
    *,
    is_on_host: bool,
) -> Output:
    """Returns the replica's rows of a draw, with the bits that they have in the whole.

    Args:
      step: The draw; its first input is the shape of the whole.
      layout: The shard, of axis 0 and in one block.
      shape: What is known of the sizes of the whole.
      type_: The type of a draw by key and counter: uniform, normal or of integers.
      state: The draw's further inputs: the key, the counter, the algorithm, and bounds.
      is_on_host: Whether the counter is in the host's memory. To add to it on a GPU takes ten
        launches of a kernel for two numbers.
    """
    write, place, vector = step.write, step.place(layout), step.inputs[0]
    dtype = step.op.outputs[0].dtype
    group = 2 if dtype.size == 8 else 4  # the numbers that are made of one value of the counter
    each = _numbers_of_one_example(step, layout, shape)
    rows = step.shape_with(vector, 0, step.entries(layout))

    def draw(sizes: Output, advanced: Output) -> Output:
        key, _, *others = state
        inputs = [sizes, key, advanced, *others]
        return step.writer.node(type_, inputs, dtype=dtype, Tshape=sizes.dtype)[0]

    with step.writer.on_host() if is_on_host else contextlib.nullcontext():
        start = write.cast(place.start, tf.int64)
        if isinstance(each, int) and each % group == 0:
            before = write.multiply(start, each // group)
        else:
            numbers = write.cast(each, tf.int64) if isinstance(each, Output) else each
            before = write.floor_divide(write.multiply(start, numbers), group)
        advanced = _advanced(write, state[1], before)
    if isinstance(each, int) and each % group == 0:
        return draw(rows, advanced)
    # The first group may be used in part, which takes one group more.
    size = write.multiply(place.rows, each)
    groups = write.floor_divide(write.add(size, 2 * group - 1), group)
    drawn = draw(write.pack([write.multiply(groups, group)], tf.int32), advanced)
    # In 32 bits, where a product that has wrapped around still has the right remainder.
    skipped = write.modulo(write.multiply(place.start, each), group)
    return write.reshape(write.slice(drawn, [skipped], [size]), rows)


def _numbers_of_one_example(
    step: Step, layout: Sharded, shape: Sequence[SizeLike | None]
) -> Operand:
    """Returns how many numbers each example has: an int, or an int32 scalar."""
    number: int = 1
    others: list[Output] = []
    for axis, size in enumerate([layout.inner, *shape[1:]]):
        if isinstance(size, int):
            number *= size
        elif size is not None:
            others.append(step.size(size))
        else:
            others.append(step.write.cast(step.write.element(step.inputs[0].local, axis), tf.int32))
    if not others:
        return number
    product: Operand = number
    for other in others:
        product = step.write.multiply(other, product) if product != 1 else other
    return product


def _advanced(write: Arithmetic, counter: Output, groups: Output) -> Output:
    """Returns a counter after groups of numbers; its first two words are one number of 128 bits."""
    words = write.bitcast(counter, tf.int64)  # GPUs cannot add unsigned integers
    low, high = write.element(words, 0), write.element(words, 1)
    moved = write.add(low, groups)
    # As an unsigned number the low word has wrapped around where its sign bit was cleared.
    carry = write.multiply(
        write.cast(write.greater(0, low), tf.int64), write.cast(write.greater(moved, -1), tf.int64)
    )
    return write.bitcast(write.pack([moved, write.add(high, carry)], tf.int64), tf.uint64)
