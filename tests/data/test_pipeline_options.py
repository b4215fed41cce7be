"""Options that cannot be meant are refused where they are said."""

import numpy as np
import pytest

import tfdp
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
