"""Compressed sums of parts under `shard`: each update is what NumPy makes of rounded gradients.

The loss is linear in the weights, so that gradients do not depend on what was trained before.
"""

import harness
import keras
import numpy as np
import pytest
import tiers
from compression import oracles
from keras import ops, optimizers

from tfdp.base.sharding import even_sharding
from tfdp.callbacks.checkpoint import model_variables
from tfdp.compression import ErrorFeedback, Int8

EXAMPLES, ROWS, COLUMNS = 12, 7, 6
INT8 = Int8(block=4, smallest=1)
FEEDBACK = ErrorFeedback(INT8)
MODES = ("parameters", "gradients", "optimizer")

every_shard = pytest.mark.parametrize("shard", tiers.first_of(*MODES))


def data(seed=0):
    rng = np.random.default_rng(seed)
    sizes = [(EXAMPLES, ROWS), (EXAMPLES, COLUMNS)]
    return [rng.integers(-9, 9, size).astype("float32") for size in sizes]


def gradients_of(x, y, replicas):
    """Each replica's gradient of the kernel."""
    shares = zip(np.array_split(x, replicas), np.array_split(y, replicas), strict=True)
    return [a.T.astype("float64") @ b / y.size for a, b in shares]


def product(y, outputs):
    return y * outputs


def made(optimizer, replicas=2, compression=INT8, shard=None, last=None):
    harness.start_over()
    options = {} if shard is None else {"shard": shard}
    with harness.strategy(replicas, compression=compression, **options).scope():
        # A bias is excluded: its sum's part is sent as it is.
        dense = keras.layers.Dense(COLUMNS, kernel_initializer="zeros", name="dense")
        model = keras.Sequential([keras.Input((ROWS,)), dense, *([] if last is None else [last])])
        model.compile(optimizer(), loss=product)
    return model


def sgd(**options):
    return optimizers.SGD(1.0, **options)


def fit(model, batches):
    for x, y in batches:
        model.fit(x, y, batch_size=EXAMPLES, shuffle=False, verbose=0)
    harness.assert_replicas_identical(model)
    return model


def kernel(model):
    return np.asarray(model.get_layer("dense").kernel.numpy(), "float64")


def replicas_of(model):
    return model.distribute_strategy.num_replicas_in_sync


def applied(steps, feedback=False, every=1):
    """The sum of each step, and what the replicas have left in the end.

    Args:
      steps: For each step the replicas' gradients.
      feedback: Whether what is lost comes back.
      every: How many batches each step is of: draws are those of the last one.
    """
    (cut,) = even_sharding([(ROWS, COLUMNS)], len(steps[0]))
    left = [np.zeros((ROWS, COLUMNS)) for _ in steps[0]]
    sums = []
    for number, gradients in enumerate(steps):
        given = [g + r for g, r in zip(gradients, left, strict=True)] if feedback else gradients
        total, own = oracles.int8_parts(INT8, given, cut, 0, (number + 1) * every - 1)
        left = [g - o for g, o in zip(given, own, strict=True)]
        sums.append(total)
    return sums, left


def residuals(model):
    (slots,) = vars(model.optimizer)["tfdp_compression_slots"].values()
    return [copy.numpy() for copy in slots["residual"].values]


@pytest.mark.telling
@every_shard
@pytest.mark.parametrize("feedback", tiers.first_of(True, False), ids=["feedback", "alone"])
def test_each_update_is_of_gradients_that_are_rounded_once(feedback, shard):
    model = made(sgd, compression=FEEDBACK if feedback else INT8, shard=shard)
    batches = [data(seed) for seed in range(3)]
    steps = [gradients_of(*batch, replicas_of(model)) for batch in batches]
    sums, left = applied(steps, feedback)
    for number, batch in enumerate(batches):
        fit(model, [batch])
        np.testing.assert_allclose(kernel(model), -sum(sums[: number + 1]), atol=1e-4)
    bias = -sum(y.sum(0, "float64") / y.size for _, y in batches)
    np.testing.assert_allclose(model.get_layer("dense").bias.numpy(), bias, rtol=1e-5)
    if feedback:
        found = residuals(model)
        first = model.distribute_strategy.rank * len(found)
        for mine, expected in zip(found, left[first:], strict=False):
            np.testing.assert_allclose(mine, expected, atol=1e-4)


@harness.in_one_process
@pytest.mark.parametrize("shard", tiers.first_of("gradients", "parameters"))
@harness.on_three_and_four_replicas
def test_parts_of_three_and_four_replicas_are_as_uneven_as_an_axis_is(replicas, shard):
    model = fit(made(sgd, replicas, FEEDBACK, shard), [data(0), data(1)])
    steps = [gradients_of(*data(seed), replicas) for seed in range(2)]
    np.testing.assert_allclose(kernel(model), -sum(applied(steps, True)[0]), atol=1e-4)


@harness.in_one_process
def test_parts_are_nearer_to_the_exact_sum_than_a_whole_that_is_rounded_twice():
    batches = [data(seed) for seed in range(4)]
    exact = -sum(sum(gradients_of(*batch, 2)) for batch in batches)
    errors = [
        np.square(kernel(fit(made(sgd, shard=shard), batches)) - exact).mean()
        for shard in ("gradients", None)
    ]
    assert 0 < errors[0] < 0.8 * errors[1]


@harness.in_one_process
@every_shard
def test_what_a_rank_sends_is_explained(shard):
    model = fit(made(sgd, 2, shard=shard), [data()])
    found = model.distribute_strategy.explain(model).collectives
    (own,) = [each for each in found if each.kind == "update"]
    blocks = -(-(ROWS * COLUMNS // 2) // 4)
    assert own.bytes_sent == blocks * (4 + 4)
    assert not [each for each in found if each.kind == "sum" and each.size_bytes > 64]


@harness.in_one_process
@every_shard
def test_clipping_acts_on_the_sums(shard):
    model = fit(made(lambda: sgd(global_clipnorm=0.5), shard=shard), [data()])
    ((total,), _), (_, y) = applied([gradients_of(*data(), 2)]), data()
    norm = np.sqrt(np.square(total).sum() + np.square(y.sum(0, "float64") / y.size).sum())
    np.testing.assert_allclose(kernel(model), -0.5 * total / norm, atol=1e-6)


@harness.in_one_process
@every_shard
def test_a_window_is_rounded_when_it_ends_or_where_it_is_of_parts_each_time(shard):
    batches = [data(seed) for seed in range(4)]
    model = made(lambda: sgd(gradient_accumulation_steps=2), 2, FEEDBACK, shard)
    steps = [gradients_of(*batch, 2) for batch in batches]
    if shard == "optimizer":
        windows = [
            [(a + b) / 2 for a, b in zip(*steps[start : start + 2], strict=True)]
            for start in (0, 2)
        ]
        expected = sum(applied(windows, True, every=2)[0])
    else:
        expected = sum(applied(steps, True)[0]) / 2
    np.testing.assert_allclose(kernel(fit(model, batches)), -expected, atol=1e-4)


@harness.in_one_process
@every_shard
@pytest.mark.parametrize("windows", tiers.first_of(None, 2), ids=["each", "windows"])
def test_a_step_that_loss_scaling_skips_leaves_residuals(windows, shard):
    """The scale is halved by the skipped step: what is kept of gradients has none."""

    def scaled():
        return optimizers.LossScaleOptimizer(
            sgd(gradient_accumulation_steps=windows), initial_scale=4.0
        )

    def left():
        (slots,) = vars(model.optimizer.inner_optimizer)["tfdp_compression_slots"].values()
        return [copy.numpy() for copy in slots["residual"].values]

    batches, (x, y) = [data(0), data(1), data(2)], data(3)
    x[-1, 0] = np.inf  # on the second replica
    model = fit(made(scaled, 2, FEEDBACK, shard), batches[:1])
    before, trained = left(), kernel(model)
    model.fit(x, y, batch_size=EXAMPLES, shuffle=False, verbose=0)
    np.testing.assert_array_equal(kernel(model), trained)
    np.testing.assert_array_equal(left(), before)
    assert float(harness.global_value(model.optimizer.dynamic_scale)) == 2.0
    fit(model, batches[1:])
    steps = [gradients_of(*batch, 2) for batch in batches]
    if windows is None:
        expected = sum(applied(steps, True)[0])
    elif shard == "optimizer":
        window = [(a + b) / 2 for a, b in zip(*steps[:2], strict=True)]
        expected = applied([window], True, every=2)[0][0]
    else:
        expected = sum(applied(steps, True)[0][:2]) / 2
    np.testing.assert_allclose(kernel(model), -expected, atol=1e-4)


class Signs(optimizers.SGD):
    """Uses gradients by a method of its own, which is not linear."""

    def apply(self, grads, trainable_variables=None):
        super().apply([ops.sign(grad) for grad in grads], trainable_variables)


@harness.in_one_process
@every_shard
@pytest.mark.parametrize("windows", tiers.first_of(None, 2), ids=["each", "windows"])
def test_what_a_method_of_ones_own_uses_is_whole_and_is_rounded_by_nobody(windows, shard):
    model = made(lambda: Signs(1.0, gradient_accumulation_steps=windows), shard=shard)
    batches = [data(0), data(1)]
    signs = [np.sign(sum(gradients_of(*batch, 2))) for batch in batches]
    np.testing.assert_allclose(kernel(fit(model, batches)), -sum(signs) / (windows or 1), rtol=1e-6)


@harness.in_one_process
@pytest.mark.parametrize(
    ("before", "after"),
    tiers.first_of(
        (("parameters", 2), ("optimizer", 2)),
        (("gradients", 2), (None, 3)),
        ((None, 2), ("parameters", 3)),
    ),
)
def test_checkpoints_of_other_shards_keep_what_is_left(before, after):
    model = fit(made(sgd, before[1], FEEDBACK, before[0]), [data(0), data(1)])
    processes = model.distribute_strategy.extended.processes
    saved = dict(
        model_variables.wholes(processes, "a test", model_variables.copies(model, processes))
    )
    kept = residuals(model)
    assert np.any(kept)
    other = made(sgd, after[1], FEEDBACK, after[0])
    with other.distribute_strategy.scope():
        other.optimizer.build(other.trainable_variables)
    model_variables.assign(other, saved, False, 0, after[1])
    np.testing.assert_array_equal(kernel(other), kernel(model))
    np.testing.assert_allclose(np.sum(residuals(other), 0), np.sum(kept, 0), atol=1e-6)
    if after[1] == before[1]:  # and training goes on as if nothing had happened
        np.testing.assert_array_equal(residuals(other), kept)
        again, same = (fit(each, [data(2)]) for each in (model, other))
        np.testing.assert_array_equal(kernel(again), kernel(same))


@harness.in_one_process
@pytest.mark.parametrize("shard", tiers.first_of("parameters", "gradients"))
def test_rows_of_a_table_are_rounded_as_a_dense_gradient(shard):
    ids = np.random.default_rng(0).integers(0, ROWS, (EXAMPLES, 1)).astype("int32")
    _, y = data()
    harness.start_over()
    compression = Int8(block=4, smallest=1, exclude=["bias$"])
    with harness.strategy(2, compression=compression, shard=shard).scope():
        table = keras.layers.Embedding(ROWS, COLUMNS, embeddings_initializer="zeros", name="table")
        model = keras.Sequential(
            [keras.Input((1,), dtype="int32"), table, keras.layers.Reshape((COLUMNS,))]
        )
        model.compile(sgd(), loss=product)
    model.fit(ids, y, batch_size=EXAMPLES, shuffle=False, verbose=0)
    one_hot = np.eye(ROWS)[ids[:, 0]]
    ((total,), _) = applied([gradients_of(one_hot, y, 2)])
    np.testing.assert_allclose(table.embeddings.numpy(), -total, atol=1e-5)
