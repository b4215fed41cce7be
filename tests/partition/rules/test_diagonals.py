import numpy as np
import pytest
import tensorflow as tf
from partition.check import check

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
