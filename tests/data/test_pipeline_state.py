"""A state is small JSON, and goes only to a pipeline of the same examples in the same order."""

import json

import numpy as np
import pytest
import tensorflow as tf

import tfdp


def make(examples=20, size=4, **options):
    return tfdp.data.pipeline(np.arange(examples), size, **{"seed": 1, **options})


def after(batches, pipeline):
    """`pipeline` after some batches."""
    iterator = iter(pipeline)
    for _ in range(batches):
        next(iterator)
    return pipeline


def rest_of_epoch(pipeline):
    return [batch.numpy().tolist() for batch in pipeline]


def test_it_is_small_json():
    state = after(3, make()).state()
    assert json.loads(json.dumps(state)) == state
    assert (state["epoch"], state["position"]) == (0, 12)
    assert len(json.dumps(state)) < 300


def test_numbers_of_numpy_make_json_too():
    pipeline = after(1, tfdp.data.pipeline(np.arange(9), np.int64(2), seed=np.int32(3)))
    assert json.loads(json.dumps(pipeline.state()))["position"] == 2


@pytest.mark.parametrize(
    ("taken", "as_text"),
    [
        *[(0, False), (5, True), (7, False)],
        *(
            pytest.param(taken, as_text, marks=pytest.mark.exhaustive)
            for taken, as_text in [(0, True), (1, False), (4, True), (7, True), (12, False)]
        ),
    ],
)
def test_a_restart_continues_with_the_next_unseen_batch(taken, as_text):
    whole = make()
    expected = []
    for _ in range(4):
        expected += rest_of_epoch(whole)
    state = after_epochs(taken).state()
    restored = make()
    restored.restore(json.dumps(state) if as_text else state)
    seen = []
    while len(seen) < len(expected) - taken:
        seen += rest_of_epoch(restored)
    assert seen == expected[taken:]


def after_epochs(batches):
    pipeline = make()
    while batches:
        for _ in pipeline:
            batches -= 1
            if not batches:
                break
    return pipeline


def test_another_batch_size_goes_on_with_the_next_unseen_example():
    restored = make(size=6)
    restored.restore(after(2, make(size=4)).state())
    whole = rest_of_epoch(make(size=20))[0]
    assert rest_of_epoch(restored) == [whole[8:14], whole[14:20]]
    assert restored.state()["epoch"] == 1


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("source", lambda: make(21)),
        ("source", lambda: tfdp.data.pipeline(np.arange(1, 21), 4, seed=1)),
        ("seed", lambda: make(seed=2)),
        ("shuffle", lambda: make(shuffle=False)),
    ],
)
def test_the_state_of_another_order_is_refused_by_name(name, other):
    with pytest.raises(ValueError, match=f"its `{name}` is .* and the pipeline's"):
        make().restore(other().state())


def test_the_buffer_of_a_shuffled_stream_is_part_of_its_order():
    def stream(buffer, **options):
        dataset = tf.data.Dataset.range(20)
        return tfdp.data.pipeline(dataset, 4, seed=1, shuffle_buffer=buffer, **options)

    with pytest.raises(ValueError, match="its `shuffle_buffer` is 5 and the pipeline's 6"):
        stream(6).restore(stream(5).state())
    stream(6, shuffle=False).restore(stream(5, shuffle=False).state())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 1; received version 2"),
        ({"epoch": -1}, "`epoch` of `state` must be"),
        ({"epoch": 1.5}, "`epoch` of `state` must be"),
        ({"position": True}, "`position` of `state` must be"),
        ({"position": 21}, "at most the 20 examples"),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(changes, message):
    pipeline = after(2, make())
    before = pipeline.state()
    with pytest.raises(ValueError, match=message):
        pipeline.restore({**before, **changes})
    assert pipeline.state() == before


@pytest.mark.parametrize("state", [None, 3, {}, {"epoch": 1}, "[]", "3"])
def test_what_is_not_even_like_a_state_is_refused(state):
    with pytest.raises(ValueError, match="`state` must be what `state\\(\\)` returned"):
        make().restore(state)


def test_a_file_that_was_cut_short_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        make().restore(json.dumps(make().state())[:-9])
