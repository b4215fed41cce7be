import numpy as np
import pytest
import tensorflow as tf
from partition.check import check
from partition.drawn import MERGES, of_drawn_batches

UNEVEN = np.random.default_rng(3).normal(size=[7, 3, 4, 4]).astype(np.float32)
FEWER = UNEVEN[:2]  # than three replicas
RAW = tf.raw_ops

KEPT = {
    "diagonals as matrices": lambda x: RAW.MatrixDiag(diagonal=x[:, 0, 0]),
    "diagonals as matrices, padded": lambda x: tf.linalg.diag(x[:, 0, 0], k=1, padding_value=5),
    "several diagonals": lambda x: tf.linalg.diag(x[:, :, :3, 0], k=(-1, 1), num_rows=3),
    "vectors from diagonals": lambda x: RAW.MatrixDiagPart(input=x),
    "vectors from one diagonal": lambda x: tf.linalg.diag_part(x, k=-2),
    "vectors from diagonals of columns": lambda x: tf.linalg.diag_part(x, k=(0, 2)),
    "bands": lambda x: tf.linalg.band_part(x, 1, 0),
    "set diagonals": lambda x: tf.linalg.set_diag(x, x[..., 0]),
    "set diagonals of examples": lambda x: RAW.MatrixSetDiag(input=x, diagonal=x[..., 1] * 2),
    "set to those of a whole": lambda x: tf.linalg.set_diag(
        x, tf.reshape(RAW.LinSpace(start=0.0, stop=1.0, num=12 * tf.shape(x)[0]), [-1, 3, 4])
    ),
    "set diagonals, other axes first": lambda x: tf.linalg.set_diag(
        tf.transpose(x, [1, 0, 2, 3]), tf.transpose(x[..., 0], [1, 0, 2])
    ),
    "other axes first": lambda x: tf.linalg.band_part(tf.transpose(x, [1, 0, 2, 3]), 0, -1),
}


@pytest.mark.parametrize("batch", [UNEVEN, FEWER], ids=["uneven", "fewer"])
@pytest.mark.parametrize("case", KEPT)
def test_matrices_of_each_example_stay_in_place(case, batch):
    assert not check(KEPT[case], batch, exact=True, replicas=[3]).exchanged


WHOLE = {
    "MatrixBandPart": lambda x: tf.linalg.band_part(x[:, 0, 0], 0, 0),
    "MatrixDiag": lambda x: RAW.MatrixDiag(diagonal=x[:, 0, 0, 0]),
    "MatrixDiagV3": lambda x: tf.linalg.diag(x[:, 0, 0, 0], k=2),
    "MatrixDiagPartV3": lambda x: tf.linalg.diag_part(x[:, 0, 0]),
    "MatrixSetDiagV3": lambda x: tf.linalg.set_diag(x[:, 0, 0], x[:4, 0, 0, 0]),
}


@pytest.mark.parametrize("type_", WHOLE)
def test_matrices_whose_rows_are_examples_are_whole(type_):
    report = check(WHOLE[type_], UNEVEN, whole=None, exact=True)
    assert type_ in {each.operation for each in report.whole}


@of_drawn_batches(orders=[(0, 1, 2), (1, 0, 2), (1, 2, 0)], merges=MERGES[:1])
def test_any_matrices_are_those_of_one_device_wherever_the_batch_is(case):
    rows, columns = case.shape[-2:]
    diagonal, at = case.choose(range(1 - rows, columns)), case.choose([0, 1])

    def function(t):
        t = tf.stack([t, 2 * t], at)
        whole = tf.cumsum(t, case.axis + (at <= case.axis))  # of all examples on every replica
        vectors, all_vectors = tf.linalg.diag_part(t), tf.linalg.diag_part(whole)
        return (
            vectors,
            RAW.MatrixDiag(diagonal=t),
            tf.linalg.diag(t, k=diagonal, padding_value=5),
            tf.linalg.diag_part(t, k=diagonal),
            tf.linalg.diag_part(t, k=(0, columns - 1)),
            tf.linalg.band_part(t, 0, 1),
            tf.linalg.set_diag(t, all_vectors),
            tf.linalg.set_diag(whole, vectors),
            RAW.MatrixSetDiag(input=t, diagonal=vectors * 2),
        )

    own = ["Cumsum", "MatrixSetDiagV3"] if case.axis == 0 else None  # else it is the matrices' own
    case.check(function, exact=True, whole=own)


@pytest.mark.parametrize("times", [1, 2])
def test_of_pairs_of_examples_without_those_of_one_with_itself_nothing_is_gathered(times):
    def loss(x):
        z = tf.concat([x[:, 0, 0]] * times, 0)
        pairs = z @ tf.transpose(z) - 1e9 * tf.eye(times * tf.shape(x)[0])
        return tf.reduce_mean(tf.nn.softmax(pairs) * pairs)

    report = check(loss, UNEVEN, whole={"MatrixDiagV3"})
    gathered = [each.operation for each in report.exchanged if each.kind == "gather"]
    assert gathered == ["MatMul"]  # whose other operand is all rows
