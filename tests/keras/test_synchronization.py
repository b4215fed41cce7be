"""Synchronizations are what workers on one device do that train by themselves and agree."""

import itertools
import logging

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import optimizers
from local_workers import LargestWithFeedback, Nesterov, OuterOptimizer, Workers, gossip_matrix

import tfdp
from tfdp.base import recording
from tfdp.compression import ErrorFeedback, TopK
from tfdp.synchronization import DiLoCo, Gossip, LocalSGD

EXAMPLES, BATCH = 35, 8  # the last batch has 3 examples, and so leaves a replica of four without


def sgd(**options):
    return optimizers.SGD(0.05, momentum=0.9, **options)


def adamw(**options):
    return optimizers.AdamW(0.01, weight_decay=0.01, **options)


def model_with(make_optimizer, **compile_options):
    def make():
        return harness.dense_model(make_optimizer(), metrics=(), **compile_options)

    return make


def made(replicas, synchronization, make, **options):
    harness.start_over()
    strategy = harness.strategy(replicas, synchronization=synchronization, **options)
    with strategy.scope():
        return make()


def assert_weights(model, workers, tolerance=1e-5):
    found, expected = model.get_weights(), workers.mean()
    harness.assert_close_arrays(
        found, [e.astype("float32") for e in expected], tolerance, "weights"
    )


def bits(model):
    """For each weight the number of different copies."""
    return [len({c.numpy().tobytes() for c in v.value.values}) for v in model.trainable_variables]


CASES = {
    "SGD with momentum": (LocalSGD(2), sgd, None),
    "each update": (LocalSGD(1), sgd, None),
    "Adam, a round that the epoch ends": (LocalSGD(3), adamw, None),
    "a round as long as an epoch": (LocalSGD(5), lambda: optimizers.Nadam(0.01), None),
    "a warm-up": (LocalSGD(4, warmup_steps=3), sgd, None),
    "clipping, of each replica's own": (LocalSGD(2), lambda: sgd(global_clipnorm=0.1), None),
    "windows": (LocalSGD(2), lambda: sgd(gradient_accumulation_steps=2), None),
    "an average of weights": (
        LocalSGD(2),
        lambda: sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=None),
        None,
    ),
    "DiLoCo": (DiLoCo(2), adamw, Nesterov),
    "DiLoCo with another outer optimizer": (
        DiLoCo(3, lambda: optimizers.Adam(0.02)),
        adamw,
        lambda: OuterOptimizer(optimizers.Adam(0.02)),
    ),
    "DiLoCo without an effect": (DiLoCo(2, lambda: optimizers.SGD(1.0)), sgd, None),
}


# DiLoCo on every number of replicas, each other case on one of them: pairs, not a product.
NUMBERS = [harness.THREE, *harness.FOUR, 2, 1]
OTHERS = [name for name in CASES if name != "DiLoCo"]
IN_TURN = zip(OTHERS, itertools.cycle(NUMBERS), strict=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "replicas"), tiers.first_of(*(("DiLoCo", number) for number in NUMBERS), *IN_TURN)
)
@harness.in_one_process
def test_training_is_that_of_workers_that_agree(case, replicas):
    synchronization, make_optimizer, outer = CASES[case]
    make = model_with(make_optimizer)
    x, y = harness.regression_data(EXAMPLES)
    workers = Workers(
        make,
        replicas,
        synchronization.every,
        synchronization.warmup_steps,
        None if outer is None else outer(),
    ).fit(x, y, BATCH, epochs=2)
    model = made(replicas, synchronization, make)
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert set(bits(model)) == {1}
    if model.optimizer.use_ema:  # `fit` ends with the averages, whose mean is that of the mean
        averages = [
            [v.numpy() for v in each.optimizer._model_variables_moving_average]
            for each in workers.models
        ]
        found, expected = model.get_weights(), [np.mean(a, 0) for a in zip(*averages, strict=True)]
        harness.assert_close_arrays(found, expected, 1e-5, "averages")
        return
    assert_weights(model, workers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "every", "replicas"),
    tiers.first_of(
        ("exponential", 1, 3), ("exponential", 2, 4), ("ring", 1, 4), ("ring", 3, 3), ("ring", 1, 2)
    ),
)
@harness.in_one_process
def test_gossip_mixes_the_weights_of_neighbours(graph, every, replicas):
    """Each replica has the weights of its worker; after a synchronization all have the mean."""
    make = model_with(sgd)
    x, y = harness.regression_data(EXAMPLES)
    model = made(replicas, Gossip(graph, every), make)
    workers = Workers(make, replicas, every, mix=gossip_matrix(graph, replicas))
    for start in range(0, 32, BATCH):
        model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])
        workers.step(x[start : start + BATCH], y[start : start + BATCH])
    for variable, *own in zip(
        model.trainable_variables, *(m.get_weights() for m in workers.models), strict=True
    ):
        harness.assert_close_arrays(harness.components(variable), own, 1e-5, variable.path)
    if not (every == 1 and replicas == 2):  # two that mix are one
        assert 1 not in bits(model)
        with pytest.raises(RuntimeError, match=r"one set of weights.*strategy\.synchronize"):
            model.evaluate(x, y, verbose=0)
    assert_weights(model, workers)  # the mean is read
    model.distribute_strategy.synchronize(model)
    workers.synchronize()
    assert set(bits(model)) == {1}
    assert_weights(model, workers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fragments", "every", "compressed", "overlap"),
    tiers.cases(
        [
            (2, 3, True, None),
            (3, 3, False, None),
            (4, 5, False, None),
            (1, 2, True, None),
            (2, 3, True, 0.25),
            (4, 4, False, 0.5),
            (1, 1, False, 0.0),
        ],
        kept=[(2, 3, True, 0.25)],
    ),
)
@harness.in_one_process
def test_fragments_end_their_rounds_one_after_the_other(fragments, every, compressed, overlap):
    """Each with an outer optimizer of its own; their outer gradients may be compressed.

    A step need not wait for their sum: the next one takes it in.
    """
    compression = ErrorFeedback(TopK(0.4, smallest=4)) if compressed else None
    make = model_with(adamw)
    x, y = harness.regression_data(56)
    model = made(
        2, DiLoCo(every, fragments=fragments, overlap=overlap), make, compression=compression
    )
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    places = vars(model.optimizer)["tfdp_round"]["fragments"]
    sizes = [sum(model.get_weights()[i].size for i in each) for each in places]
    assert all(sizes) and sorted(i for each in places for i in each) == list(range(4))
    workers = Workers(
        make, 2, every, outer=[Nesterov() for _ in places], fragments=places,
        compress=LargestWithFeedback(0.4, smallest=4) if compressed else None, overlap=overlap,
    )  # fmt: skip
    seen = []
    for start in range(0, 56, BATCH):
        model.train_on_batch(x[start : start + BATCH], y[start : start + BATCH])
        workers.step(x[start : start + BATCH], y[start : start + BATCH])
        seen.append([number for number, each in enumerate(bits(model)) if each == 1])
        assert_weights(model, workers)
    if overlap:
        assert seen == [[]] * len(seen)
    elif fragments == 2:
        assert seen[:3] == [sorted(places[0]), [], sorted(places[1])]
    tf.config.run_functions_eagerly(True)  # which the end of a round does not
    try:
        model.distribute_strategy.synchronize(model)
    finally:
        tf.config.run_functions_eagerly(False)
    workers.synchronize()
    assert set(bits(model)) == {1}
    assert_weights(model, workers)


@pytest.mark.slow
@harness.in_one_process
def test_within_a_round_replicas_differ_and_outside_their_mean_is_read():
    make = model_with(sgd)
    x, y = harness.regression_data(EXAMPLES)
    model = made(2, LocalSGD(3, warmup_steps=1), make)
    workers = Workers(make, 2, 3, 1)
    strategy = model.distribute_strategy
    for start, copies in ((0, 1), (7, 2), (14, 2)):
        model.train_on_batch(x[start : start + 7], y[start : start + 7])
        workers.step(x[start : start + 7], y[start : start + 7])
        assert set(bits(model)) == {copies}
    for variable, *own in zip(
        model.trainable_variables, *(m.get_weights() for m in workers.models), strict=True
    ):
        harness.assert_close_arrays(harness.components(variable), own, 1e-5, variable.path)
        found = np.float64(variable.numpy())
        np.testing.assert_array_equal(
            found, np.float32(np.mean(harness.components(variable), axis=0, dtype="float64"))
        )
    kernel = model.trainable_variables[0].value
    np.testing.assert_array_equal(kernel.value(), kernel.numpy())
    np.testing.assert_array_equal(tf.matmul(x, kernel), tf.matmul(x, kernel.numpy()))
    momentum = model.optimizer.variables[-1]
    copies = harness.components(momentum)
    assert copies[0].tobytes() != copies[1].tobytes()
    np.testing.assert_allclose(momentum.numpy(), np.mean(copies, 0), rtol=1e-6)
    for use in (
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.test_on_batch(x, y),
        lambda: model.predict(x, verbose=0),
    ):
        with pytest.raises(RuntimeError, match=r"one set of weights.*strategy\.synchronize"):
            use()
    with pytest.raises(tf.errors.InvalidArgumentError, match="Within a round"):
        tf.function(lambda: kernel + 0.0)()
    before = strategy.extended.replicas.reducer
    strategy.synchronize(model)
    assert before is strategy.extended.replicas.reducer
    workers.synchronize()
    assert set(bits(model)) == {1}
    assert_weights(model, workers)
    strategy.synchronize(model)  # no round is open
    assert_weights(model, workers)
    outputs = np.mean([m.predict(x, verbose=0) for m in workers.models], 0)
    np.testing.assert_allclose(model.predict(x, verbose=0), outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(tf.function(lambda: kernel + 0.0)(), kernel.numpy())


@pytest.mark.slow
@pytest.mark.exhaustive("test_training_is_that_of_workers_that_agree")
@harness.in_one_process
def test_synchronizing_each_update_without_momentum_is_the_plain_strategy():
    """Also with masks, weights of examples, uneven shares, and what a penalty adds."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, (10, 4)).astype("float32")
    y = rng.normal(size=(10, 4, 1)).astype("float32")
    weights = rng.uniform(0.5, 2.0, (10, 4)).astype("float32")

    def make():
        penalty = keras.regularizers.L2(0.1)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Embedding(5, 3, mask_zero=True),
                keras.layers.Dense(1, kernel_regularizer=penalty),
            ]
        )
        model.compile(optimizers.SGD(0.05), "mse")
        return model

    found = []
    for synchronization in (LocalSGD(1), None):
        model = made(3, synchronization, make)
        fit = {"batch_size": 4, "sample_weight": weights, "epochs": 2}
        history = model.fit(x, y, shuffle=False, verbose=0, **fit).history
        found.append((model.get_weights(), history["loss"]))
    (ours, losses), (plain, plain_losses) = found
    harness.assert_close_arrays(ours, plain, 1e-6, "weights")
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)


@pytest.mark.slow
@harness.in_one_process
def test_an_overflow_on_one_replica_skips_the_update_of_all():
    """The scale, the count of updates and the rounds stay alike on all replicas."""
    make = model_with(lambda: optimizers.LossScaleOptimizer(sgd(), initial_scale=2.0**10))
    x, y = harness.regression_data(12)
    y[5] = 1e37  # in the second batch, on replica 0
    model = made(2, LocalSGD(2), make)
    workers = Workers(make, 2, 2)
    scales = []
    for start in range(0, 12, 4):
        batch = x[start : start + 4], y[start : start + 4]
        model.train_on_batch(*batch)
        workers.step(*batch)
        scales += [set(map(float, harness.components(model.optimizer.dynamic_scale)))]
        assert len(set(bits(model))) == 1
        assert set(bits(model)) == {2 if start < 8 else 1}
    assert scales == [{2.0**10}, {2.0**9}, {2.0**9}]
    assert workers.updates() == 2
    assert_weights(model, workers)


def before(node, function):
    """The operations of a function that must have ended before this one begins."""
    by_name, found, left = {each.name: each for each in function.node_def}, set(), [node]
    while left:
        inputs = {each.removeprefix("^").partition(":")[0] for each in left.pop().input}
        new = {each for each in inputs if each in by_name} - found
        left += [by_name[each] for each in new]
        found |= new
    return {by_name[each].op for each in found}


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [0.5, None])
@harness.in_one_process
def test_a_sum_waits_for_gradients_unless_it_overlaps_with_them(overlap):
    x, y = harness.regression_data(8)
    model = made(2, DiLoCo(2, overlap=overlap), model_with(sgd))
    strategy, variables = model.distribute_strategy, model.trainable_variables
    with strategy.scope():
        model.optimizer.build(variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        model.optimizer.apply(tape.gradient(loss, variables), variables)

    program = strategy.partitioned(step)
    program(x, y)
    calls = program._latest.program
    (main,) = (each for each in calls.functions if each.signature.name == calls.name)
    nodes = {node.name: node for node in main.node_def}
    updates = [each for each in calls.report.exchanged if each.kind == "update"]
    # What may sum at its beginning needs no gradient; the last one ends the update.
    waits = ["MatMul" in before(nodes[each.node], main) for each in updates]
    assert waits[0] is False and waits[-1] is True
    (outer,) = vars(model.optimizer)["tfdp_round"]["outer"]
    momenta = {id(copy.handle) for slot in outer.variables[2:] for copy in slot.value.values}
    uses = [
        momenta
        & {
            id(tensor)
            for tensor in calls.collectives[nodes[e.node].attr["f"].func.name].captured[0]
        }
        for e in updates
    ]
    assert bool(uses[0]) == (overlap is not None)


@pytest.mark.slow
@harness.in_one_process
def test_a_sum_that_is_due_comes_once_where_the_next_step_makes_no_update():
    """As that of an open window, or one that a loss scale skips."""
    make = model_with(
        lambda: optimizers.LossScaleOptimizer(
            sgd(gradient_accumulation_steps=2), initial_scale=2.0**10
        )
    )
    x, y = harness.regression_data(40)
    y[18] = 1e37  # in the fifth batch, the first one after the second update
    model = made(2, DiLoCo(1, overlap=0.5), make)
    workers = Workers(make, 2, 1, outer=Nesterov(), overlap=0.5)
    for start in range(0, 40, 4):
        batch = x[start : start + 4], y[start : start + 4]
        model.train_on_batch(*batch)
        workers.step(*batch)
        assert_weights(model, workers)
    assert workers.updates() == 4


class Ends(keras.callbacks.Callback):
    """Keeps what callbacks see at the end of epochs, and within."""

    def __init__(self):
        super().__init__()
        self.copies, self.within = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.within.append(max(bits(self.model)))

    def on_test_begin(self, logs=None):
        self.copies.append(max(bits(self.model)))

    def on_epoch_end(self, epoch, logs=None):
        self.copies.append(max(bits(self.model)))
        self.model.stop_training = epoch == 1


@pytest.mark.slow
@harness.in_one_process
def test_validation_callbacks_and_files_see_one_set_of_weights_at_an_epochs_end(tmp_path, caplog):
    x, y = harness.regression_data(28)
    ends, path = Ends(), str(tmp_path / "{epoch}.keras")
    files = keras.callbacks.ModelCheckpoint(path)
    for synchronization in (DiLoCo(3), LocalSGD(9), Gossip(every=9)):
        model = made(2, synchronization, model_with(adamw))
        with caplog.at_level(logging.WARNING, "tfdp"):
            history = model.fit(
                x, y, batch_size=7, epochs=5, shuffle=False, verbose=0,
                validation_data=(x, y), callbacks=[ends, files],
            ).history  # fmt: skip
        assert history["val_loss"][-1] == pytest.approx(
            model.evaluate(x, y, verbose=0, return_dict=True)["loss"]
        )
    assert ends.copies == [1] * 12
    assert ends.within == 2 * [2, 2, 1, 2] + 16 * [2]
    assert [r.message for r in caplog.records if "an epoch, which has 4" in r.message] == [
        "A round of LocalSGD(every=9, warmup_steps=0) has more updates than an epoch, which has 4 "
        "and ends each round: replicas synchronize once an epoch.",
        "Gossip(graph='exponential', every=9) mixes less than once an epoch, which has 4 updates "
        "and ends with the mean of all.",
    ]
    kept = keras.models.load_model(str(tmp_path / "2.keras"))
    for one, other in zip(kept.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(kept.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@harness.in_one_process
def test_averages_are_not_swapped_in_by_a_callback():
    x, y = harness.regression_data(8)
    model = made(2, LocalSGD(3), model_with(lambda: sgd(use_ema=True)))
    with pytest.raises(ValueError, match="received SwapEMAWeights"):
        model.fit(x, y, verbose=0, callbacks=keras.callbacks.SwapEMAWeights())


class Begins(keras.callbacks.Callback):
    """Keeps what a training begins with."""

    weights = bits = None

    def on_train_batch_begin(self, batch, logs=None):
        if self.weights is None:
            self.weights = self.model.get_weights()
            self.bits = sorted(set(bits(self.model)))


class Stops(harness.Interrupts):
    def on_train_batch_end(self, batch, logs=None):
        if self.left == 2:
            assert set(bits(self.model)) == {2}
            self.weights = self.model.get_weights()
        super().on_train_batch_end(batch, logs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("synchronization", "make_optimizer"),
    tiers.first_of(
        (DiLoCo(3), lambda: adamw(gradient_accumulation_steps=2)),
        # After step 13 a fragment is due.
        (DiLoCo(5, fragments=2, overlap=0.5), adamw),
        (LocalSGD(4), lambda: optimizers.Adafactor(0.05)),
    ),
    ids=["DiLoCo with windows", "a sum that is due", "slots of other shapes"],
)
@harness.in_one_process
def test_a_checkpoint_within_a_round_goes_on_with_the_same_bits(
    synchronization, make_optimizer, tmp_path
):
    x, y = harness.regression_data(64)
    # Step 13 is the fifth of the second epoch: within a round, and within a window.
    options = {"batch_size": 8, "epochs": 3, "shuffle": True, "verbose": 0}

    def train(replicas, folder, *callbacks):
        model = made(replicas, synchronization, model_with(make_optimizer))
        checkpoint = tfdp.callbacks.Checkpoint(tmp_path / folder, every_steps=13)
        model.fit(x, y, callbacks=[checkpoint, *callbacks], **options)
        return model

    undisturbed = train(2, "undisturbed")
    with pytest.raises(KeyboardInterrupt):
        train(2, "stopped", Stops(14))
    went_on = train(2, "stopped")
    found = zip(harness.state(went_on), harness.state(undisturbed), strict=True)
    for one, other in found:
        for a, b in zip(harness.components(one), harness.components(other), strict=True):
            assert a.tobytes() == b.tobytes(), one.path
    stopped, begun = Stops(14), Begins()
    with pytest.raises(KeyboardInterrupt):
        train(2, "other", stopped)
    other = train(3, "other", begun)
    assert begun.bits == [1]  # of 2 within a round, of which the 3 have the mean
    harness.assert_close_arrays(begun.weights, stopped.weights, 1e-6, "weights")
    assert set(bits(other)) == {1}
    plain = made(2, None, model_with(make_optimizer))
    checkpoint = tfdp.callbacks.Checkpoint(tmp_path / "other", every_steps=13)
    with pytest.raises(ValueError, match="kept for each replica, as under a `sync"):
        plain.fit(x, y, callbacks=[checkpoint], **options)


@pytest.mark.slow
@pytest.mark.exhaustive("test_a_checkpoint_within_a_round_goes_on_with_the_same_bits")
@pytest.mark.parametrize(
    "synchronization", [LocalSGD(3), DiLoCo(3), DiLoCo(3, fragments=2), Gossip()], ids=repr
)
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
@harness.in_one_process
def test_another_number_of_replicas_goes_on_as_so_many_workers_with_the_mean(
    synchronization, before, after, tmp_path
):
    """Of weights and of momenta; the place in the round and what an outer optimizer has stay."""
    x, y = harness.regression_data(40)
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    make = model_with(sgd)

    def train(replicas, *callbacks):
        model = made(replicas, synchronization, make)
        checkpoint = tfdp.callbacks.Checkpoint(tmp_path / "kept", every_steps=4)
        model.fit(x, y, callbacks=[checkpoint, *callbacks], **options)
        return model

    with pytest.raises(KeyboardInterrupt):
        train(before, harness.Interrupts(5))
    model = train(after)

    def workers_of(count):
        found = Workers(make, count, synchronization.every)
        if isinstance(synchronization, Gossip):
            found.mix = gossip_matrix("exponential", count)
        elif isinstance(synchronization, DiLoCo):
            found.fragments = vars(model.optimizer)["tfdp_round"]["fragments"]
            found.outers = [Nesterov() for _ in found.fragments]
        return found

    first, second = workers_of(before), workers_of(after)
    for start in range(0, 32, 8):
        first.step(x[start : start + 8], y[start : start + 8])
    slots = zip(*([v.numpy() for v in m.optimizer.variables] for m in first.models), strict=True)
    slots = [np.mean(each, 0) for each in slots]
    for worker in second.models:
        worker.set_weights(first.mean())
        for variable, value in zip(worker.optimizer.variables, slots, strict=True):
            variable.assign(value)
    second.began, second.in_round, second.outers = first.began, first.in_round, first.outers
    second.step(x[32:], y[32:])
    second.synchronize()
    second.fit(x, y, 8)
    assert_weights(model, second)


@pytest.mark.slow
@harness.in_one_process
def test_a_loop_of_ones_own_trains_as_workers_do():
    make = model_with(sgd)
    x, y = harness.regression_data(28)
    model = made(2, DiLoCo(2), make)
    strategy = model.distribute_strategy

    @tf.function
    def step(x, y):
        def of_replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((y - model(x, training=True)) ** 2) / 7
            grads = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(grads, model.trainable_variables)

        strategy.run(of_replica, args=(x, y))

    workers = Workers(make, 2, 2, outer=Nesterov())
    for start in range(0, 21, 7):
        batch = x[start : start + 7], y[start : start + 7]
        step(strategy.split(batch[0]), strategy.split(batch[1]))
        workers.step(*batch)
    assert set(bits(model)) == {2}
    strategy.synchronize(model.optimizer)
    workers.synchronize()
    assert set(bits(model)) == {1}
    assert_weights(model, workers)

    def within():
        strategy.synchronize(model)

    for call in (lambda: strategy.run(within), tf.function(within)):
        with pytest.raises(RuntimeError, match="outside of replica functions"):
            call()


class OwnStep(keras.Sequential):
    """Halves gradients by hand, and shows a norm."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([g / 2.0 for g in gradients], self.trainable_variables)
        return {"norm": tf.linalg.global_norm(gradients)}


@pytest.mark.slow
@harness.in_one_process
def test_what_a_train_step_of_ones_own_scales_stays_the_replicas_and_its_norm_is_of_all():
    x, y = harness.regression_data(12)

    def make():
        model = OwnStep([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(optimizers.SGD(0.05), "mse")
        return model

    model = made(2, LocalSGD(2), make)
    history = model.fit(x, y, batch_size=4, epochs=1, shuffle=False, verbose=0).history
    harness.start_over()
    kernels, norms = [np.float64(make().get_weights()[0])] * 2, []
    biases = [np.zeros(1)] * 2
    for number, start in enumerate(range(0, 12, 4), start=1):
        found = []
        for k in range(2):
            a, b = (v[start + 2 * k : start + 2 * k + 2].astype("float64") for v in (x, y))

            def gradients(kernel, bias, a=a, b=b):
                error = 2 * (a @ kernel + bias - b) / len(a)
                return a.T @ error, error.sum(0)

            g = gradients(kernels[k], biases[k])
            found.append(g)
            kernels[k] = kernels[k] - 0.05 * g[0] / 2
            biases[k] = biases[k] - 0.05 * g[1] / 2
        means = [sum(each) / 2 for each in zip(*found, strict=True)]
        norms.append(np.sqrt(sum((each**2).sum() for each in means)))
        if number in (2, 3):
            kernels, biases = [np.mean(kernels, 0)] * 2, [np.mean(biases, 0)] * 2
    np.testing.assert_allclose(model.get_weights()[0], kernels[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()[1], biases[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(history["norm"][-1], norms[-1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive("test_training_is_that_of_workers_that_agree")
@pytest.mark.parametrize("how", ["compiled", "built late", "several optimizers"])
@harness.in_one_process
def test_other_ways_to_train_agree(how):
    options = {"jit_compile": True} if how == "compiled" else {}
    x, y = harness.regression_data(EXAMPLES)

    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(6, activation="tanh")
            self.last = keras.layers.Dense(1)

        def call(self, x):
            return self.last(self.hidden(x))

    def make(under_strategy=True):
        optimizer = sgd()
        if how == "several optimizers":
            one, two = sgd(), adamw()
            optimizer = optimizers.MultiOptimizer(lambda v: one if "bias" in v.path else two)
        if how != "built late" or not under_strategy:
            return harness.dense_model(optimizer, metrics=(), **options)
        model = Late()
        model.compile(optimizer, "mse")
        return model

    workers = Workers(lambda: make(under_strategy=False), 3, 2)
    if how == "several optimizers":
        workers.updates = lambda: int(workers.models[0].optimizer.optimizers[0].iterations)
    model = made(3, LocalSGD(2), make)
    model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    workers.fit(x, y, BATCH, epochs=2)
    assert set(bits(model)) == {1}
    assert_weights(model, workers)


class Wrapped(keras.Model):
    """Trains a model in it with that model's optimizer."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.inner.trainable_variables)
        self.inner.optimizer.apply(gradients, self.inner.trainable_variables)
        return {"loss": loss}


@pytest.mark.slow
@pytest.mark.exhaustive(
    "test_what_a_train_step_of_ones_own_scales_stays_the_replicas_and_its_norm_is_of_all"
)
@harness.in_one_process
def test_an_epoch_ends_the_rounds_of_models_within_the_model():
    def make():
        model = Wrapped(harness.dense_model(sgd(), metrics=()))
        model.compile(loss="mse")
        return model

    x, y = harness.regression_data(24)
    model = made(2, LocalSGD(2), make)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    workers = Workers(model_with(sgd), 2, 2).fit(x, y, 8)
    assert set(bits(model)) == {1}
    assert_weights(model, workers)


@pytest.mark.slow
@pytest.mark.exhaustive("test_a_loop_of_ones_own_trains_as_workers_do")
@harness.in_one_process
def test_two_optimizers_have_rounds_of_their_own_for_the_same_weights():
    model = made(2, LocalSGD(3), model_with(sgd))
    strategy = model.distribute_strategy
    with strategy.scope():
        other = optimizers.SGD(0.1)
        other.build(model.trainable_variables)

    @tf.function
    def step(optimizer):
        def of_replica():
            rank = tf.distribute.get_replica_context().replica_id_in_sync_group
            grads = [tf.fill(v.shape, tf.cast(rank, tf.float32)) for v in model.trainable_variables]
            optimizer.apply(grads, model.trainable_variables)

        strategy.run(of_replica)

    step(model.optimizer)
    for _ in range(3):  # the last of which ends the other's round, and so makes the weights one
        step(other)
    assert set(bits(model)) == {1}
    with strategy.scope(), pytest.raises(RuntimeError, match="to build an optimizer"):
        optimizers.SGD(0.1).build(model.trainable_variables)
    strategy.synchronize(model)
    with strategy.scope():
        optimizers.SGD(0.1).build(model.trainable_variables)


class Attaching(keras.callbacks.Callback):
    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def set_model(self, model):
        super().set_model(model)
        self.recorder.attach(model)


@pytest.mark.slow
@pytest.mark.exhaustive("test_training_is_that_of_workers_that_agree")
@harness.in_one_process
def test_the_bytes_of_synchronizations_within_an_epoch_are_counted():
    x, y = harness.regression_data(28)
    model = made(2, DiLoCo(2), model_with(sgd))
    recorder = recording.Recorder(model.distribute_strategy.extended.worker_devices)
    options = {"batch_size": 4, "epochs": 1, "verbose": 0}  # seven steps
    model.fit(x, y, callbacks=[Attaching(recorder)], **options)
    reading = recorder.read()
    weights = sum(4 * w.size for w in model.get_weights())
    assert list(reading.of("steps")) == [7, 7]
    assert list(reading.of("updates")) == [7, 7]
    assert list(reading.of("buckets")) == [3, 3]
    assert list(reading.of("bytes_sent")) == [3 * weights] * 2
