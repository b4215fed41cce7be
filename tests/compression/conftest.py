"""Replicas without a strategy, and what compressions make of their gradients."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_functions import DEVICES, devices, on_replicas

from tfdp import topology
from tfdp.base import recording
from tfdp.communication.collectives import Reducer
from tfdp.communication.engines import TensorFlowEngine
from tfdp.compression import Bucket

__all__ = ["devices", "on_replicas"]


@dataclasses.dataclass
class Outcome:
    """What one replica has after a compressed sum, as NumPy arrays, and the bytes it has sent."""

    sums: list[np.ndarray]
    own: list[np.ndarray]
    slots: list[dict[str, np.ndarray]]
    bytes_sent: int


@pytest.fixture
def sums_on(on_replicas):
    """Returns a function that sums one bucket of gradients on replicas: one outcome for each.

    A function of the compression and the replicas' gradients, and of their slots, of several steps.
    With `cuts` each replica gets its parts of the sums.
    """

    def make(compression, replicas, shapes, hosts=None, cuts=None):
        told = {}

        class Tap:
            def __init__(self, rank):
                self.rank = rank

            def bucket(self, inputs, sums, bytes_sent):
                told[self.rank] = told.get(self.rank, 0) + bytes_sent()

        engine = TensorFlowEngine(DEVICES[:replicas])
        reducer = Reducer(engine, topology.Native(), hosts or [0] * replicas, 2**30)
        variables = [keras.Variable(np.zeros(shape, "float32"), name="kernel") for shape in shapes]
        slots = compression.slots_of(variables)
        names = [sorted(each) for each in slots]
        count = len(shapes)
        given = [
            tf.Variable(tf.zeros([replicas, *shape]), shape=[replicas, *shape]) for shape in shapes
        ]
        kept = [
            {name: tf.Variable(tf.stack([slot.first()] * replicas)) for name, slot in each.items()}
            for each in slots
        ]
        step = tf.Variable(0)

        def replica(rank):
            outcome = {}

            def compress(members, transport):
                bucket = Bucket(
                    [given[index][rank] for index in members],
                    [{n: v[rank] for n, v in kept[index].items()} for index in members],
                    tuple(members),
                    step.read_value(),
                )
                if cuts is None:
                    found = compression.sum(bucket, transport)
                else:
                    own_cuts = [cuts[index] for index in members]
                    found = compression.compressed_parts(bucket, own_cuts, transport)
                for position, index in enumerate(members):
                    outcome[index] = (found.own[position], found.slots[position])
                return found.sums

            told.pop(rank, None)
            gradients = [variable[rank] for variable in given]
            sizes = [compression.payload_bytes(shape) for shape in shapes]
            with recording.tapped(Tap(rank)):
                sums = reducer.sum_by(compress, gradients, sizes, rank)
            own = [outcome[index][0] for index in range(count)]
            slots = [outcome[i][1][name] for i in range(count) for name in names[i]]
            return sums, own, slots, tf.cast(told[rank], tf.float64)

        traced = on_replicas(replicas, replica)

        def run(gradients, number=0):
            step.assign(number)
            for index, variable in enumerate(given):
                variable.assign(np.stack([np.float32(own[index]) for own in gradients]))
            outcomes = []
            for sums, own, slots, sent in traced():
                values = iter([value.numpy() for value in slots])
                by_name = [{name: next(values) for name in each} for each in names]
                outcomes.append(
                    Outcome(
                        [value.numpy() for value in sums],
                        [value.numpy() for value in own],
                        by_name,
                        int(sent),
                    )
                )
            for index in range(count):
                for name in names[index]:
                    kept[index][name].assign([each.slots[index][name] for each in outcomes])
            return outcomes

        return run

    return make
