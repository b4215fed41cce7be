import numpy as np
import pytest
import tensorflow as tf
import tiers
from partition.check import check
from partition.drawn import MERGES, of_drawn_batches
from partition.examples import gradients, in_shares
from partition.samples import sample


def matrices(length, *sizes):
    """Matrices of which none is like another, and all are far from singular."""
    generator = np.random.default_rng([length, *sizes])
    found = generator.uniform(0.5, 1.5, [length, *sizes])
    if found.shape[-1] == found.shape[-2]:
        found += 3 * np.diag(np.arange(1, 1 + found.shape[-1]))
    return found.astype(np.float32)


def symmetric(x):
    return x + tf.linalg.matrix_transpose(x)


DECOMPOSITIONS = {
    "cholesky": lambda x: tf.linalg.cholesky(symmetric(x)),
    "inverse": tf.linalg.inv,
    "determinant": tf.linalg.det,
    "logarithm of determinant": tf.linalg.slogdet,
    "qr": tf.linalg.qr,
    "singular values": lambda x: tf.linalg.svd(x, compute_uv=False),
    "eigenvalues": lambda x: tf.linalg.eigvalsh(symmetric(x)),
    "eigenvectors": lambda x: tf.abs(tf.linalg.eigh(symmetric(x))[1]),
}

FORWARD = {
    "singular vectors": tf.linalg.svd,
    "lu": tf.linalg.lu,
    "square root": tf.linalg.sqrtm,
    "eigenvalues of any": tf.linalg.eigvals,
    "eigenvectors of any": tf.linalg.eig,
    "logarithm": lambda x: tf.linalg.logm(tf.cast(x, tf.complex64)),
}


@in_shares
@pytest.mark.parametrize(
    "kind", tiers.cases([*DECOMPOSITIONS, *FORWARD], ["qr", "singular values"])
)
def test_matrices_are_decomposed_each_by_itself(kind, length, replicas):
    def function(x):
        if kind in FORWARD:
            return FORWARD[kind](x)
        return gradients(DECOMPOSITIONS[kind], x)

    report = check(function, matrices(length, 2, 3, 3), replicas=replicas, tolerance=1e-4)
    assert not report.exchanged


SOLUTIONS = {
    "any": tf.linalg.solve,
    "of the transpose": lambda x, y: tf.linalg.solve(x, y, adjoint=True),
    "triangular": tf.linalg.triangular_solve,
    "of least squares": lambda x, y: tf.linalg.lstsq(x, y, l2_regularizer=0.1),
    "tridiagonal": lambda x, y: tf.linalg.tridiagonal_solve(x, y, diagonals_format="compact"),
    "tridiagonal product": lambda x, y: tf.linalg.tridiagonal_matmul(
        x, y, diagonals_format="compact"
    ),
}


@in_shares
@pytest.mark.parametrize("kind", tiers.first_of(*SOLUTIONS))
def test_equations_are_solved_each_by_itself(kind, length, replicas):
    def function(x, y):
        return gradients(SOLUTIONS[kind], x, y)

    inputs = matrices(length, 2, 3, 3), matrices(length, 2, 3, 4)
    report = check(function, *inputs, replicas=replicas, tolerance=1e-4)
    assert not report.exchanged


@sample(lambda length: matrices(length, 3, 4), tolerance=1e-4, sends=[])
def test_one_triangular_matrix_solves_the_equations_of_all(y):
    one = tf.constant(matrices(3, 3))
    return [
        tf.linalg.triangular_solve(one, y),
        tf.linalg.triangular_solve(one[tf.newaxis], y),
        *gradients(lambda y: tf.linalg.triangular_solve(one, y), y),
    ]


@sample(lambda length: matrices(length, 3, 4), tolerance=1e-4)
def test_matrices_that_are_the_same_for_all_are_cut(y):
    many = tf.broadcast_to(tf.constant(matrices(3, 3)), [tf.shape(y)[0], 3, 3])
    return tf.linalg.solve(many, y)


@sample(matrices(7, 3), replicas=[3], whole=["Qr", "Svd"], tolerance=1e-4)
def test_matrices_whose_rows_are_the_examples_are_decomposed_whole(x):
    many = tf.stack([x, tf.sin(x) + 2])  # [2, batch, 3]
    return [
        tf.linalg.qr(x),
        tf.linalg.svd(tf.transpose(x), compute_uv=False),
        tf.linalg.svd(many, compute_uv=False),
        tf.linalg.qr(tf.transpose(many, [0, 2, 1])),
    ]


@of_drawn_batches(merges=MERGES[:1])
def test_any_matrices_are_those_of_one_device_wherever_the_batch_is(case):
    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        if case.axis == 0:
            spread = tf.eye(case.shape[1]) * 50
            squares = tf.matmul(t, t, transpose_b=True) + spread
            others = tf.matmul(whole, whole, transpose_b=True) + spread
        else:
            squares = others = tf.reduce_max(t, [0, 1, 2], keepdims=True) + tf.eye(3) * 5
        return (
            tf.linalg.cholesky(squares),
            tf.linalg.det(others / 50) + tf.linalg.det(squares / 50),
            tf.linalg.solve(squares, t[:, : case.shape[1]]) if case.axis == 0 else squares,
            tf.linalg.solve(others, t) if case.axis == 0 else squares,
            tf.linalg.solve(squares, whole) if case.axis == 0 else squares,
        )

    case.check(function, tolerance=1e-4)
