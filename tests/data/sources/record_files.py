"""Record files for tests, written by TensorFlow, which is the oracle."""

import numpy as np
import tensorflow as tf

OVERHEAD = 16  # bytes of a record that are not its payload


def write(path, payloads):
    """Writes a TFRecord file and returns its name."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


def payloads(count, length=40, seed=0):
    """Payloads that differ, of one length."""
    bits = np.random.default_rng(seed)
    return [bits.bytes(length) for _ in range(count)]


def flip(path, byte, bit=0):
    """Changes a bit of a file."""
    with open(path, "r+b") as file:
        file.seek(byte)
        changed = file.read(1)[0] ^ (1 << bit)
        file.seek(byte)
        file.write(bytes([changed]))


def read(source, indices):
    """Serialized records of a source, through tf.data."""
    dataset = tf.data.Dataset.from_tensors(np.asarray(indices, np.int64)).map(source.rows)
    return next(iter(dataset)).numpy().tolist()
