import numpy as np
import pytest
import tensorflow as tf
import tiers
from hypothesis import strategies as st
from partition.check import check
from partition.drawn import MERGES, of_drawn_batches
from partition.examples import gradients, in_shares, numbers, of_any_axes
from partition.samples import Sample, of_samples, sample


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
def test_matrices_that_are_the_same_for_all_are_sharded(y):
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


WEIGHTS = np.random.default_rng(0).uniform(0.5, 1.5, [4, 5]).astype(np.float32)


@in_shares
@pytest.mark.parametrize("transpose_a", tiers.first_of(False, True))
@pytest.mark.parametrize("transpose_b", [False, True])
def test_rows_times_weights_are_rows_and_their_gradients_are_summands(
    transpose_a, transpose_b, length, replicas, layouts
):
    def function(x):
        def product(x, weights):
            x = tf.transpose(x) if transpose_a else x
            weights = tf.transpose(weights) if transpose_b else weights
            return tf.matmul(x, weights, transpose_a, transpose_b)

        return gradients(product, x, tf.constant(WEIGHTS))

    report = check(function, numbers(length, 4), replicas=replicas)
    assert [each.kind for each in report.exchanged] == ["sum"]
    assert layouts["MatMul"] == {"sharded(axis 0 by batch_0)", "partial"} | (
        {"sharded(axis 1 by batch_0)"} if transpose_a else set()
    )


def of_whole(x):
    """A matrix of two columns that every replica has whole."""
    return tf.cumsum(tf.ones([tf.shape(x)[0], 2]), 0)


def gram(x, y):
    """A partial matrix."""
    return tf.matmul(x, y, transpose_a=True)


def of_whole_numbers(x):
    x = tf.cast(10 * x, tf.int32)
    few = tf.cast(x[tf.newaxis], tf.int16)
    return gram(x, x), tf.matmul(x, x, transpose_b=True), gram(few, few)


def of_complex_numbers(x):
    x = tf.complex(x, x[:, ::-1])
    return tf.matmul(x, x, adjoint_a=True), tf.matmul(x, x, adjoint_b=True)


def broadcast(x, y):
    def product(x, y, weights):
        # Not `y[:, tf.newaxis] @ weights`: with oneDNN TensorFlow 2.21 crashes on one device.
        moved = (y @ weights[:, :4])[:, tf.newaxis]
        return tf.matmul(x, weights) + tf.matmul(x, moved)

    return gradients(product, x, y, tf.constant(WEIGHTS[:, :4]))


def of_any_number_of_axes(x):
    rows, total = of_any_axes(x), of_any_axes(gram(x, x))
    return [
        tf.raw_ops.MatMul(a=rows, b=WEIGHTS),
        tf.raw_ops.MatMul(a=x, b=rows, transpose_a=True),
        tf.raw_ops.MatMul(a=total, b=WEIGHTS[:, :4]),
        tf.raw_ops.BatchMatMulV2(x=rows, y=WEIGHTS),
        tf.einsum("b...j,jk->b...k", rows, WEIGHTS),
        tf.linalg.cross(rows[:, :3], x[:, 1:]),
    ]


def equation(text, *shapes, weights=None):
    """A sample of an equation and its gradients."""
    given = [] if weights is None else [tf.constant(WEIGHTS[:weights])]
    return Sample(
        lambda *batches: gradients(lambda *each: tf.einsum(text, *each), *batches, *given), shapes
    )


PAIR = ((4,), (2,))
SAMPLES = {
    "MatMul over the batch": Sample(
        lambda x, y: [gram(x, y), tf.matmul(y, tf.transpose(x), True, True)], PAIR, "partial"
    ),
    "MatMul over the batch, one of both whole": Sample(
        lambda x: [gram(x, of_whole(x)), gram(of_whole(x), x)], gives="partial", whole=["Cumsum"]
    ),
    "MatMul of all with all": Sample(
        lambda x: gradients(lambda x: tf.matmul(x, x, transpose_b=True), x),
        gives="sharded(axis 0)",
    ),
    "Einsum and a product of a partial and a whole": Sample(
        lambda x, y: [
            gram(x, y) @ WEIGHTS[:2, :2],
            tf.einsum("ij,kj->ki", gram(x, y), WEIGHTS[:2, :2]),
        ],
        *[PAIR, "partial", ["sum"]],
    ),
    "MatMul of a partial that is larger, or has the batch": Sample(
        lambda x, y: [
            gram(x, y) @ WEIGHTS[:2],
            x @ gram(x, y),
            gram(gram(x, y), gram(x, y)),
        ],
        PAIR,
    ),
    "Einsum of a partial that is smaller, with the batch": Sample(
        lambda x, y: tf.einsum("ij,bj->i", gram(x, y), y), PAIR
    ),
    "MatMul of whole numbers": Sample(of_whole_numbers, whole=["BatchMatMulV2"]),
    "MatMul of complex numbers": Sample(of_complex_numbers),
    "MatMul of any number of axes": Sample(of_any_number_of_axes, whole=None),
    "BatchMatMulV2, broadcast": Sample(broadcast, ((2, 3, 4), (4, 4)), "sharded(axis 0)"),
    "Einsum bij,jk->bik": equation("bij,jk->bik", (2, 3), weights=3),
    "Einsum bij,bjk->bik": equation("bij,bjk->bik", (2, 3), (3, 4)),
    "Einsum bij,jk->kbi": equation("bij,jk->kbi", (2, 3), weights=3),
    "Einsum bi,bj->ij": equation("bi,bj->ij", (2,), (3,)),
    "Einsum bi,bj->bij": equation("bi,bj->bij", (2,), (3,)),
    "Einsum bi,ci->bc": equation("bi,ci->bc", (2,), (2,)),
    "Einsum bihd,bjhd->bhij": equation("bihd,bjhd->bhij", (2, 3, 4), (5, 3, 4)),
    "Einsum bhij,bjhd->bihd": equation("bhij,bjhd->bihd", (2, 3, 4), (4, 2, 5)),
    "Einsum b...j,jk->b...k": equation("b...j,jk->b...k", (2, 5, 3), weights=3),
    "Einsum ...j,jk->...k": equation("...j,jk->...k", (2, 3), weights=3),
    "Einsum b...,b...->...": equation("b...,b...->...", (2, 3), (2, 3)),
    **{
        f"Einsum {text}": equation(text, (2, 3))
        for text in ("bij->ij", "bij->ibj", "bij->bi", "bij->", "b...->...")
    },
    "Einsum of diagonals": Sample(lambda x: tf.einsum("bii->bi", x), [(2, 2)], whole=["Einsum"]),
    "Cross": Sample(
        lambda x: gradients(tf.linalg.cross, x, tf.sin(3 * x)), [(2, 3)], "sharded(axis 0)"
    ),
}
OTHERS = {name for name in SAMPLES if "->" in name and name != "Einsum bij,jk->bik"}
test_products_are_those_of_one_device = of_samples(SAMPLES, SAMPLES.keys() - OTHERS)


@in_shares
@pytest.mark.parametrize("adjoint_a", tiers.first_of(False, True))
@pytest.mark.parametrize("adjoint_b", [False, True])
def test_products_of_matrices_keep_the_cut_of_the_examples(adjoint_a, adjoint_b, length, replicas):
    def function(x, y):
        def product(x, y):
            x = tf.transpose(x, [0, 1, 3, 2]) if adjoint_a else x
            y = tf.transpose(y, [0, 1, 3, 2]) if adjoint_b else y
            return tf.matmul(x, y, adjoint_a=adjoint_a, adjoint_b=adjoint_b)

        return gradients(product, x, y)

    report = check(function, numbers(length, 2, 3, 4), numbers(length, 2, 4, 5), replicas=replicas)
    assert not report.exchanged


@in_shares
def test_heads_that_are_merged_with_the_batch_attend_to_their_own(length, replicas, layouts):
    def attention(x, weights):
        def heads(y):  # [batch * 2, 3, 2]
            y = tf.transpose(tf.reshape(y @ weights, [-1, 3, 2, 2]), [0, 2, 1, 3])
            return tf.reshape(y, [-1, 3, 2])

        queries, keys, values = heads(x), heads(x + 1), heads(x * 2)
        scores = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True))
        return tf.matmul(scores, values)

    def function(x):
        return gradients(attention, x, tf.constant(WEIGHTS[:, :4]))

    check(function, numbers(length, 3, 4), replicas=replicas)
    assert "sharded(axis 0 by batch_0, inner 2)" in layouts["BatchMatMulV2"]


@sample(
    (2, 3),
    (2, 4),
    layouts={
        "BatchMatMulV2": {"sharded(axis 1 by batch_0)", "sharded(axis 2 by batch_0)", "partial"}
    },
)
def test_rows_of_matrices_may_be_the_examples(x, y):
    turned = tf.transpose(x, [1, 0, 2])  # [2, batch, 3]
    return [
        turned @ tf.constant(WEIGHTS[:3]),
        tf.matmul(turned, tf.transpose(y, [1, 0, 2]), transpose_a=True),
        tf.matmul(WEIGHTS[:2, :3], turned, transpose_b=True),
    ]


@sample(
    (2, 3),
    layouts={"Einsum": {"sharded(axis 2 by batch_0)", "sharded(axis 0 by batch_0)", "partial"}},
)
def test_equations_with_the_batch_on_any_axis(x):
    turned = tf.transpose(x, [1, 0, 2])
    return [
        tf.einsum("ibj,jk->ikb", turned, WEIGHTS[:3]),
        tf.einsum("ibj,bi->j", turned, x[:, :, 0]),
        tf.einsum("i...j,jk->...ik", turned, WEIGHTS[:3]),
    ]


@sample(numbers(7, 4), numbers(5, 4), replicas=[3])
def test_products_of_two_batches_keep_the_rows_of_one(x, y):
    return [tf.matmul(x, y, transpose_b=True), tf.einsum("bi,ci->cb", x, y)]


@in_shares
@pytest.mark.parametrize("wide", [1, 50])
def test_stand_ins_add_nothing_whether_operands_or_the_result_are_masked(wide, length, replicas):
    def function(x, y):
        return tf.matmul(x, y, transpose_a=True)

    check(function, numbers(length, wide), numbers(length, wide), replicas=replicas)
    check(function, numbers(length, 1), numbers(length, 1500), replicas=replicas)


@of_drawn_batches(merges=MERGES[:3])
def test_any_product_is_that_of_one_device_wherever_the_batch_is(case):
    names = "abc"[: case.rank]
    left = "".join(case.draw(st.permutations(names)))
    result = "".join(case.some(names))
    if case.choose([True, False]):  # over the batch
        result = result.replace(names[case.axis], "")
    turn = case.choose([False, True])

    def function(t):
        whole = tf.cumsum(t, case.axis)  # of all examples on every replica
        turned = tf.transpose(t, [names.index(each) for each in left])
        found = [
            tf.einsum(f"{names},{left}->{result}", t, turned),
            tf.einsum(f"{names},{left}->{result}", whole, turned),
            tf.einsum(f"{names}->{result}", t),
            tf.einsum(f"{names},d->{result}d", t, tf.constant([1.0, 2.0])),
            tf.matmul(t, t, transpose_a=turn, transpose_b=not turn),
            tf.matmul(t, whole, transpose_a=turn, transpose_b=not turn),
            tf.matmul(whole, t, adjoint_a=not turn, adjoint_b=turn),
        ]
        if case.rank == 3:
            found += [tf.matmul(t, t[0], transpose_b=True), tf.matmul(t[:, 0], t, transpose_b=True)]
        s = tf.reduce_sum(t, case.axis)
        ones = np.ones([case.shape[case.others[-1]], 1], np.float32)
        return [*found, tf.einsum("...i,ij->...j", s, ones)]

    case.check(function, whole=["Cumsum", "StridedSlice"])
