"""Options that cannot be meant are refused where they are said."""

import threading
import time

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

import tfdp
from tfdp.data import pipeline_options
from tfdp.data.pipeline_options import PipelineOptions

BAD = {
    "global_batch_size": [0, -1, 2.5, True, "8", None],
    "seed": [-1, 1.5, True, None, 2**63],
    "shuffle": [1000, None, "yes"],
    "map_fn": [3, "lower"],
    "drop_remainder": [1, None],
    "cache": ["/tmp/cache", 1],
    "prefetch": [-1, 2.0, "many", None, True],
    "memory_bytes": [0, -5, 1.5],
    "shuffle_buffer": [0, None, 1.5],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(name, value):
    options = {"global_batch_size": 4, "seed": 1, name: value}
    with pytest.raises(ValueError, match=rf"`{name}` must be .*received .*\. Use ") as error:
        tfdp.data.pipeline(np.arange(8), **options)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"global_batch_size": np.int64(4), "seed": np.int32(0)},
        {"global_batch_size": 1, "seed": 2**63 - 1, "prefetch": 0},
        {"global_batch_size": 4, "seed": 1, "memory_bytes": 2**30, "shuffle_buffer": 1},
    ],
)
def test_options_at_their_limits_are_taken(options):
    assert PipelineOptions(**options).global_batch_size >= 1


def test_the_seed_must_be_given():
    with pytest.raises(TypeError, match="seed"):
        tfdp.data.pipeline(np.arange(8), 4)


EXAMPLE = 1000  # bytes
BATCH = 10


@hypothesis.given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from(["uint8", "float16", "float32", "float64", "int64", "bool"]),
)
def test_the_bytes_of_an_example_are_those_of_its_arrays(shapes, dtype):
    arrays = [np.zeros(shape, dtype) for shape in shapes]
    specs = [tf.TensorSpec(array.shape, tf.as_dtype(dtype)) for array in arrays]
    assert pipeline_options.example_bytes(specs) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(
    "spec",
    [
        tf.TensorSpec([], tf.string),
        tf.TensorSpec([None], tf.int32),
        tf.RaggedTensorSpec([None], tf.int32),
    ],
)
def test_the_bytes_of_what_varies_are_not_known(spec):
    assert pipeline_options.example_bytes((tf.TensorSpec([2], tf.float32), spec)) is None


@hypothesis.given(budget=st.integers(1, 10**9), batch=st.integers(1, 10**8))
def test_what_is_made_and_what_waits_fit_unless_it_is_one_of_each(budget, batch):
    made, waiting = pipeline_options.batches_within(budget, batch)
    assert made >= 1
    assert waiting >= 1
    assert (made + waiting) * batch <= budget or made == waiting == 1


class Seen:
    """Counts the examples that were mapped."""

    def __init__(self):
        self.count = 0
        self._lock = threading.Lock()

    def map(self, example):
        def note(example):
            with self._lock:
                self.count += 1
            return example

        return tf.ensure_shape(tf.numpy_function(note, [example], example.dtype), example.shape)

    def settled(self, least):
        """The count when it has reached one, and has not grown for a while."""
        deadline = time.monotonic() + 60
        before = -1
        while (self.count != before or before < least) and time.monotonic() < deadline:
            before = self.count
            time.sleep(0.5)
        return before


@pytest.mark.slow
@pytest.mark.parametrize("batches", [2, 8])
def test_no_more_batches_wait_than_fit(batches):
    """With 400 examples, one batch taken: half the memory may wait, some examples are mapped."""
    seen = Seen()
    pipeline = tfdp.data.pipeline(
        np.zeros([400, EXAMPLE], "uint8"),
        BATCH,
        seed=1,
        map_fn=seen.map,
        memory_bytes=batches * BATCH * EXAMPLE,
    )
    iterator = iter(pipeline)
    next(iterator)
    waiting = batches // 2
    # The one taken, those that wait, the one that waits for room, and the next one's examples.
    least = (1 + waiting) * BATCH
    assert least <= seen.settled(least) <= least + 2 * BATCH + 32


@pytest.mark.slow
def test_a_buffer_that_does_not_fit_is_refused():
    dataset = tf.data.Dataset.from_tensor_slices(np.zeros([400, EXAMPLE], "uint8"))
    options = {"global_batch_size": 8, "seed": 1, "memory_bytes": 50_000}
    message = r"but 400 of 1000 bytes take 400000 .* Use `shuffle_buffer=50`"
    with pytest.raises(ValueError, match=message):
        tfdp.data.pipeline(dataset, **options)
    tfdp.data.pipeline(dataset, **options, shuffle_buffer=50)
    tfdp.data.pipeline(dataset, **options, shuffle=False)


def test_the_budget_reaches_tf_data_too():
    pipeline = tfdp.data.pipeline(np.zeros(8), 4, seed=0, memory_bytes=12345)
    assert pipeline.for_replicas(1, range(1)).options().autotune.ram_budget == 12345
