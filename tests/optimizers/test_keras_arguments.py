"""Every argument that all Keras optimizers take does here what it does there."""

import keras
import numpy as np
import pytest
from optimizers import problems, rows


def norm(array):
    return np.sqrt((np.asarray(array) ** 2).sum())


def steps_on(make, prepare, **options):
    """The steps of an optimizer whose gradients are prepared by hand."""
    problem = problems.fixed()
    gradients = [prepare(step) for step in problem.gradients]
    return problems.steps(make(**options), problem.weights, gradients)


def assert_as_by_hand(make, prepare, **option):
    """Asserts that an option does what is done to the gradients by hand, and that this matters."""
    by_hand = steps_on(make, prepare)
    actual = steps_on(make, lambda step: step, **option)
    problems.assert_same_steps(actual, by_hand, problems.fixed().weights, 1e-6)
    without = steps_on(make, lambda step: step)
    assert max(np.abs(a - b).max() for a, b in zip(by_hand[-1], without[-1], strict=True)) > 1e-3


def clipnorm(make):
    def clipped(step):
        return [g * min(1.0, 0.5 / norm(g)) for g in step]

    assert_as_by_hand(make, clipped, clipnorm=0.5)


def global_clipnorm(make):
    def clipped(step):
        total = norm([norm(g) for g in step])
        return [g * min(1.0, 0.5 / total) for g in step]

    assert_as_by_hand(make, clipped, global_clipnorm=0.5)


def clipvalue(make):
    assert_as_by_hand(make, lambda step: [np.clip(g, -0.25, 0.25) for g in step], clipvalue=0.25)


def loss_scale_factor(make):
    assert_as_by_hand(make, lambda step: [g / 1024 for g in step], loss_scale_factor=1024.0)
    assert float(make(loss_scale_factor=1024.0).scale_loss(0.5)) == 512.0


def weight_decay(make):
    # Where nothing is adapted, decay moves a weight by rate · decay · weight more, once.
    plain = {"exclude_from_layer_adaptation": ["."], "exclude_from_weight_decay": []}
    decayed = steps_on(make, lambda step: step, weight_decay=0.5, **plain)[0]
    for none in (None, 0.0):
        bare = steps_on(make, lambda step: step, weight_decay=none, **plain)[0]
        rate = float(make().learning_rate)
        for a, b, start in zip(decayed, bare, problems.fixed().weights, strict=True):
            np.testing.assert_allclose(b - a, rate * 0.5 * start, rtol=1e-9)


def gradient_accumulation_steps(make):
    problem = problems.fixed()
    first, second, third, fourth = problem.gradients

    def mean(*micro_batches):
        return [np.mean(parts, axis=0) for parts in zip(*micro_batches, strict=True)]

    # LAMB's t counts two updates, not four calls: its bias corrections would show it.
    expected = problems.steps(make(), problem.weights, [mean(first, second), mean(third, fourth)])
    optimizer = make(gradient_accumulation_steps=2)
    actual = problems.steps(optimizer, problem.weights, problem.gradients)
    problems.assert_same_steps(actual[1::2], expected, problem.weights, 1e-12)
    for before, after in ((problem.weights, actual[0]), (actual[1], actual[2])):
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)
    assert int(optimizer.iterations) == 2


def averages(momentum, overwrite=None):
    """Weights and averages that an average of momentum should leave, and what leaves them."""

    def check(make, **options):
        problem = problems.fixed()
        optimizer = make(use_ema=True, ema_momentum=momentum, **options)
        trained = problems.variables(problem.weights)
        average = None
        for number, step in enumerate(problem.gradients, 1):
            before = [v.numpy() for v in trained]
            optimizer.apply([keras.ops.convert_to_tensor(g) for g in step], trained)
            after = [v.numpy() for v in trained]
            kept = [v.numpy() for v in optimizer._model_variables_moving_average]
            if overwrite is None:
                # Starts with the first weights that are trained.
                average = average or after
                average = [
                    momentum * a + (1 - momentum) * w for a, w in zip(average, after, strict=True)
                ]
                for a, b in zip(kept, average, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-6)
            else:
                same = all(np.array_equal(a, b) for a, b in zip(kept, after, strict=True))
                assert same == (number % overwrite == 0 or number == 1)
            assert any(np.any(a != b) for a, b in zip(before, after, strict=True))
        if overwrite is None:
            optimizer.finalize_variable_values(trained)
            for a, b in zip(trained, average, strict=True):
                np.testing.assert_allclose(a.numpy(), b, rtol=1e-6)

    return check


def use_ema(make):
    averages(0.99)(make)
    plain = problems.steps(make(), problems.fixed().weights, problems.fixed().gradients)
    averaged = problems.steps(
        make(use_ema=True), problems.fixed().weights, problems.fixed().gradients
    )
    problems.assert_same_steps(averaged, plain, problems.fixed().weights, 1e-12)


def ema_momentum(make):
    averages(0.25)(make)


def ema_overwrite_frequency(make):
    averages(0.5, overwrite=2)(make, ema_overwrite_frequency=2)


def name(make):
    optimizer = make(name="mine")
    optimizer.build(problems.variables(problems.fixed().weights))
    assert optimizer.name == optimizer.get_config()["name"] == "mine"
    assert all(v.path.startswith("mine/") for v in optimizer.variables)
    assert make().name == type(optimizer).__name__.lower()


# A row for each argument: what shows that it works.
CHECKS = {
    check.__name__: check
    for check in (
        clipnorm,
        clipvalue,
        ema_momentum,
        ema_overwrite_frequency,
        global_clipnorm,
        gradient_accumulation_steps,
        loss_scale_factor,
        name,
        use_ema,
        weight_decay,
    )
}


def test_every_argument_of_keras_has_a_row():
    assert set(CHECKS) == set(rows.keras_arguments())


@pytest.mark.parametrize("argument", CHECKS)
@pytest.mark.parametrize("optimizer", rows.OPTIMIZERS)
def test_an_argument_of_keras_works(optimizer, argument):
    # An ε that matters: else LAMB does not see the scale of a gradient.
    extra = {"epsilon": 0.25} if optimizer == "LAMB" else {}
    CHECKS[argument](lambda **options: rows.OPTIMIZERS[optimizer](**{**extra, **options}))


@pytest.mark.parametrize("optimizer", rows.OPTIMIZERS)
def test_an_argument_that_keras_does_not_know_is_refused(optimizer):
    with pytest.raises(ValueError, match=r"not recognized: {'momemtum': 0.9}"):
        rows.OPTIMIZERS[optimizer](momemtum=0.9)
    with pytest.raises(ValueError, match="Only one of `clipnorm`, `clipvalue`"):
        rows.OPTIMIZERS[optimizer](clipnorm=1.0, clipvalue=1.0)
