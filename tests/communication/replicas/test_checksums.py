"""Checksums of tensors; NumPy's integers are the oracle."""

import gpu_placing
import gpu_steps
import harness
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdp.communication.replicas import checksums

DTYPES = (
    *("bool", "int8", "uint8", "int16", "int32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)


def by_numpy(integers, block):
    """The checksum of integers, in arithmetic modulo 2**64."""
    of_blocks = []
    for first in range(0, len(integers), block):
        bits = integers[first : first + block].astype("uint64")
        places = np.arange(len(bits), dtype="uint64") * np.uint64(0x9E3779B97F4A7C15)
        mixed = bits ^ places
        for _ in range(2):
            mixed = mixed * np.uint64(6364136223846793005)
            mixed ^= mixed >> np.uint64(32)
        of_blocks.append(int(mixed.sum()))
    total = 0
    for each in of_blocks:
        total = (total * 2862933555777941757 + each) % 2**64
    return total - 2**64 * (total >= 2**63)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), st.integers(1, 4))
def test_blocks_are_summed_as_integers_modulo_two_to_the_64th(numbers, block):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(checksums, "BLOCK", block)
        found = int(checksums.of_tensor(tf.constant(numbers, tf.int64)))
    assert found == by_numpy(np.array(numbers, "int64"), block)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_bit_of_each_element_tells(dtype, monkeypatch):
    monkeypatch.setattr(checksums, "BLOCK", 4)
    numbers = np.arange(6) % 2
    own = tf.cast(numbers, dtype)
    seen = {int(checksums.of_tensor(tf.identity(own)))}
    raw = own.numpy().tobytes()
    bits = range(len(raw) * 8) if dtype != "bool" else range(0, len(raw) * 8, 8)
    for bit in bits:
        other = bytearray(raw)
        other[bit // 8] ^= 1 << bit % 8
        as_numpy = np.frombuffer(bytes(other), own.dtype.as_numpy_dtype)
        seen.add(int(checksums.of_tensor(tf.constant(as_numpy))))
    assert len(seen) == len(bits) + 1


def test_opposite_signs_of_two_elements_tell():
    own = np.arange(1.0, 65.0)
    found = {int(checksums.of_tensor(tf.constant(own)))}
    for one in range(24):
        for other in range(one):
            signs = np.ones(64)
            signs[[one, other]] = -1
            found.add(int(checksums.of_tensor(tf.constant(own * signs))))
    assert len(found) == 1 + 24 * 23 // 2


def test_small_differences_of_neighbours_do_not_cancel():
    own = np.arange(2, dtype="int32") + 100
    steps = np.arange(-20, 21)
    found = {
        int(checksums.of_tensor(tf.constant(own + np.array([one, other], "int32"))))
        for one in steps
        for other in steps
    }
    assert len(found) == len(steps) ** 2


def test_numbers_of_eight_bits_are_told_apart():
    numbers = np.array([0.5, 1.0, -2.0], ml_dtypes.float8_e4m3fn)
    found = {int(checksums.of_tensor(tf.constant(numbers * sign))) for sign in (1, -1)}
    assert len(found) == 2


@harness.in_one_process
@pytest.mark.skipif(
    tf.__version__ != gpu_placing.read()["tensorflow"], reason="others have other kernels"
)
def test_a_gpu_computes_them_in_its_own_memory_block_by_block():
    traced = gpu_steps.traced_checksum()
    placing = gpu_placing.Placing(gpu_placing.read()["kernels"]).of(traced)
    assert placing.launches
    assert placing.copies == {}
    assert max(each.shape.num_elements() for each in made_of(traced)) == checksums.BLOCK


def made_of(traced):
    """The tensors that are computed, without those that are parts or shapes of the one given."""
    return [
        tensor
        for operation in traced.graph.get_operations()
        if operation.type not in {"Placeholder", "Reshape", "Identity"}
        for tensor in operation.outputs
    ]
