"""Replicas' sequences of collectives: the same keys for the same calls, or an error."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdp.communication.engines import Sequences, sequence
from tfdp.errors import CollectiveMismatchError

CALLS = st.builds(
    sequence.CollectiveCall,
    kind=st.sampled_from(["all_reduce", "all_gather"]),
    dtype=st.sampled_from(["float32", "int64"]),
    shape=st.one_of(
        st.none(), st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=2).map(tuple)
    ),
    group=st.just((0, 1, 2)),
)


def issue(sequences, rank, calls):
    with sequences.replica(rank):
        return [sequences.instance_key(rank, call) for call in calls]


def call(shape=(2,), kind="all_reduce", dtype="float32", group=(0, 1, 2)):
    return sequence.CollectiveCall(kind, dtype, shape, group)


@given(st.lists(CALLS, max_size=8))
def test_replicas_with_the_same_sequence_get_the_same_keys_and_pass(calls):
    sequences = Sequences()
    first, *others = [issue(sequences, rank, calls) for rank in range(3)]
    assert all(keys == first for keys in others)
    assert len(set(first)) == len(calls)
    sequences.check()


@pytest.mark.slow
@given(st.lists(CALLS, min_size=1, max_size=6), st.integers(1, 2), st.data())
def test_a_replica_that_leaves_one_out_is_named_with_its_position(calls, odd_one, data):
    calls = [call(shape=(position,)) for position in range(len(calls))]
    left_out = data.draw(st.integers(0, len(calls) - 1))
    sequences = Sequences()
    for rank in range(3):
        own = calls[:left_out] + calls[left_out + 1 :] if rank == odd_one else calls
        issue(sequences, rank, own)
    with pytest.raises(CollectiveMismatchError) as caught:
        sequences.check()
    message = str(caught.value)
    assert f"number {left_out + 1} is " in message
    assert "on replica 0" in message
    assert f"on replica {odd_one}" in message
    assert f"replica {3 - odd_one}." not in message


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (call(shape=(3,)), r"all_reduce of float32 \[3\] between ranks \[0, 1, 2\] on replica 1"),
        (call(dtype="float16"), r"all_reduce of float16 \[2\] .* on replica 1"),
        (call(kind="all_gather"), r"all_gather of float32 \[2\] .* on replica 1"),
        (call(shape=(2, 1)), r"all_reduce of float32 \[2, 1\] .* on replica 1"),
    ],
)
def test_the_message_shows_both_collectives_and_a_remedy(other, words):
    sequences = Sequences()
    issue(sequences, 0, [call(), call()])
    issue(sequences, 1, [call(), other])
    issue(sequences, 2, [call(), call()])
    mine = r"number 2 is all_reduce of float32 \[2\] between ranks \[0, 1, 2\] on replica 0"
    with pytest.raises(CollectiveMismatchError, match=mine + " and " + words + r".*tf\.where"):
        sequences.check()


@pytest.mark.parametrize("other", [(2, 3), (None, None), None], ids=str)
def test_what_is_unknown_while_tracing_must_be_so_on_all_replicas(other):
    sequences = Sequences()
    for rank, shape in enumerate([(None, 3), other, (None, 3)]):
        issue(sequences, rank, [call(shape=shape)])
    with pytest.raises(CollectiveMismatchError, match=r"\[None, 3\].*replica 1.*tf\.ensure_shape"):
        sequences.check()
    assert str(call(shape=None)).startswith("all_reduce of float32 unknown shape")


def test_only_the_members_of_a_group_are_compared_and_each_group_has_keys_of_its_own():
    left, right, all_of_them = (0, 1), (2, 3), (0, 1, 2, 3)
    sequences = Sequences()
    keys = {
        rank: issue(sequences, rank, [call(group=own), call(group=all_of_them), call(group=own)])
        for rank, own in ((0, left), (1, left), (2, right), (3, right))
    }
    sequences.check()
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert keys[0][1] == keys[2][1]
    assert len(set(keys[0] + keys[2])) == 5


def test_the_order_between_groups_may_differ_within_a_group_it_may_not():
    pair, everyone = (0, 1), (0, 1, 2)
    sequences = Sequences()
    issue(sequences, 0, [call(group=pair), call(group=everyone)])
    issue(sequences, 1, [call(group=everyone), call(group=pair)])
    issue(sequences, 2, [call(group=everyone)])
    sequences.check()


def test_no_key_is_given_twice_in_a_process():
    keys = [key for _ in range(3) for key in issue(Sequences(), 0, [call(), call()])]
    keys += [sequence.next_key() for _ in range(3)]
    assert len(set(keys)) == len(keys)
    assert min(keys) >= 1 << 24
    assert max(keys) < 1 << 31  # keys are int32


def test_tracing_a_replica_again_starts_its_record_anew():
    sequences = Sequences()
    issue(sequences, 0, [call(), call()])
    issue(sequences, 0, [call()])
    issue(sequences, 1, [call()])
    issue(sequences, 2, [call()])
    sequences.check()


def test_the_current_replica_is_the_innermost_of_its_own_thread():
    outer, inner = Sequences(), Sequences()
    elsewhere = []

    def other_thread():
        with pytest.raises(RuntimeError, match="inside a replica function"):
            sequence.current()
        elsewhere.append(True)

    with outer.replica(1):
        with inner.replica(0):
            assert sequence.current() == (inner, 0)
        assert sequence.current() == (outer, 1)
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
    assert elsewhere == [True]


def test_a_collective_outside_a_replica_function_is_refused_also_after_an_error():
    sequences = Sequences()
    with pytest.raises(KeyError), sequences.replica(0):
        raise KeyError
    with pytest.raises(RuntimeError, match=r"inside a replica function.*`strategy.run`"):
        sequence.current()
