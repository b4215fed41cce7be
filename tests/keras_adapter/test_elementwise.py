"""The proof that an optimizer is elementwise, or updates each variable apart from the others."""

import keras
import pytest
import tensorflow as tf
import tiers
from keras import ops, optimizers

import tfdp
from tfdp.keras_adapter.gradients.elementwise import is_elementwise
from tfdp.keras_adapter.gradients.scratch_copies import Like, NotProven

LIKES = [
    Like("dense/kernel", (512, 300), 0),
    Like("dense_1/kernel", (9, 40), 1),
    Like("dense/bias", (40,), 0),
    Like("dense_1/bias", (1,), None),
]


class Normed(optimizers.SGD):
    """Its step has the length of the rate."""

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient / ops.norm(gradient), variable, learning_rate)


class Counting(optimizers.SGD):
    """Its rate falls with each variable that it updates."""

    def build(self, variables):
        super().build(variables)
        self.count = self.add_variable((), name="count")

    def update_step(self, gradient, variable, learning_rate):
        self.assign_add(self.count, 1.0)
        super().update_step(gradient, variable, learning_rate / self.count)


class Given(optimizers.SGD):
    """Divides gradients where `where` says so, given the name, the updates, and the values."""

    def __init__(self, where, learning_rate=0.01, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.where = where

    def update_step(self, gradient, variable, learning_rate):
        divisor = self.where(gradient, variable, self.iterations)
        super().update_step(gradient / ops.cast(divisor, variable.dtype), variable, learning_rate)

    def get_config(self):
        return {**super().get_config(), "where": self.where}


def if_so(condition, value):
    return ops.where(condition, ops.cast(value, "float32"), 1.0)


# Norms that not every variable, step or gradient meets.
HIDDEN = {
    "a name": lambda g, v, t: ops.norm(g) if "dense_1/kernel" in v.name else 1.0,
    "a later step": lambda g, v, t: if_so(t > 5, ops.norm(g)),
    "large gradients": lambda g, v, t: ops.maximum(ops.norm(g) / 100.0, 1.0),
    "small gradients": lambda g, v, t: if_so(ops.norm(g) < 0.01, ops.norm(g)),
    "a warm-up": lambda g, v, t: ops.norm(g) / ops.minimum(1.0, ops.cast(t + 1, g.dtype) / 100000),
    "many rows": lambda g, v, t: ops.norm(g) if len(v.shape) == 2 and min(v.shape) >= 128 else 1.0,
}


class Rows(optimizers.Optimizer):
    """Keeps a mean of squares for each row, in a dict."""

    def build(self, variables):
        super().build(variables)
        self.means = {}
        for variable in variables:
            mean = self.add_variable((variable.shape[0], 1), dtype=variable.dtype)
            self.means[self._var_key(variable)] = mean

    def update_step(self, gradient, variable, learning_rate):
        mean = self.means[self._var_key(variable)]
        axes = tuple(range(1, len(gradient.shape)))
        square = ops.mean(ops.square(gradient), axes, keepdims=True)
        self.assign_add(mean, ops.reshape(square, (-1, 1)))


class InLists(Rows):
    """Keeps them in a list, and updates by them."""

    def build(self, variables):
        super().build(variables)
        self.means = [self.means[self._var_key(variable)] for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        mean = self.means[self._get_variable_index(variable)]
        flat = ops.reshape(gradient, (gradient.shape[0], -1))
        self.assign_add(mean, ops.mean(ops.square(flat), 1, keepdims=True))
        step = flat / ops.sqrt(mean + 1e-7)
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * ops.reshape(step, gradient.shape))


class InADict(optimizers.Optimizer):
    """Keeps momenta in a dict, and others in a nested list; its rate is none of its options."""

    def __init__(self, momentum=0.9):
        super().__init__(0.05)
        self.momentum = momentum

    def build(self, variables):
        super().build(variables)
        self.momenta = {
            self._var_key(v): self.add_variable_from_reference(v, "m") for v in variables
        }
        self.more = self.add_optimizer_variables(variables, ["a", "b"])

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momenta[self._var_key(variable)]
        other = self.more[1][self._get_variable_index(variable)]
        self.assign(momentum, self.momentum * momentum + gradient)
        self.assign_add(other, ops.abs(momentum))
        rate = ops.cast(learning_rate, variable.dtype)
        self.assign_sub(variable, rate * momentum / (other + 0.1))

    def get_config(self):
        return {"momentum": self.momentum, 3: "a key of its own"}

    @classmethod
    def from_config(cls, config):
        return cls(config["momentum"])


class CountsOne(Counting):
    """Advances what it keeps for all by one of the variables."""

    def __init__(self, rate=0.1, which=1, **kwargs):
        super().__init__(rate, **kwargs)
        self.which = which

    def update_step(self, gradient, variable, learning_rate):
        if self._get_variable_index(variable) == self.which:
            self.assign_add(self.count, 1.0)
        optimizers.SGD.update_step(self, gradient, variable, learning_rate)

    def get_config(self):
        config = super().get_config()
        return {"rate": config.pop("learning_rate"), "which": self.which}


class RawSlots(optimizers.SGD):
    """Keeps variables of TensorFlow's own in a list."""

    def build(self, variables):
        super().build(variables)
        self.seen = [tf.Variable(tf.zeros(v.shape, v.dtype)) for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        seen = self.seen[self._get_variable_index(variable)]
        seen.assign_add(gradient)
        super().update_step(seen, variable, learning_rate)


class OwnFloat32(optimizers.SGD):
    """Computes in float32 alone."""

    def update_step(self, gradient, variable, learning_rate):
        gradient = gradient * tf.constant(0.5)
        super().update_step(gradient, variable, learning_rate)


class Frozen(optimizers.SGD):
    """Moves nothing."""

    def update_step(self, gradient, variable, learning_rate):
        pass


class Broken(optimizers.SGD):
    """Needs a variable that the small ones do not have."""

    def build(self, variables):
        super().build(variables)
        self.first = {v.path: v for v in variables}["no/such"]


class FloatingRate(optimizers.SGD):
    """Says its present rate in its configuration."""

    def get_config(self):
        return {**super().get_config(), "learning_rate": float(self.learning_rate)}


class Uncopied(optimizers.SGD):
    """Its constructor does not take what its configuration holds."""

    def __init__(self, rate):
        super().__init__(rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: optimizers.Adam(amsgrad=True, gradient_accumulation_steps=2, use_ema=True), True),
        pytest.param(lambda: optimizers.Nadam(), True, marks=tiers.MARK),
        (lambda: optimizers.Adafactor(), False),
        (lambda: tfdp.optimizers.LARS(0.5), False),
        (Normed, False),
        pytest.param(
            lambda: tfdp.optimizers.LARS(0.5, trust_coefficient=1e-5), False, marks=tiers.MARK
        ),
        (lambda: tfdp.optimizers.LAMB(exclude_from_layer_adaptation=["kernel"]), False),
        pytest.param(
            lambda: tfdp.optimizers.LAMB(exclude_from_layer_adaptation=[".*"]),
            True,
            marks=tiers.MARK,
        ),
        (lambda: InLists(0.1), False),
        pytest.param(InADict, True, marks=tiers.MARK),
        (OwnFloat32, True),
        (FloatingRate, True),
        (lambda: FloatingRate(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)), True),
    ],
    ids=[
        "Adam",
        "Nadam",
        "Adafactor",
        "LARS",
        "a norm of a user's own",
        "a small trust",
        "of biases alone",
        "of nothing",
        "rows, cut by columns",
        "state in a dict",
        "float32 alone",
        "a rate read",
        "a schedule's rate read",
    ],
)
def test_elementwise_is_what_updates_a_slice_as_the_slice_of_its_update(make, expected):
    assert is_elementwise(make(), LIKES) is expected


@pytest.mark.slow
@pytest.mark.parametrize("where", tiers.cases(HIDDEN, ["a name", "a warm-up", "many rows"]))
def test_a_norm_is_seen_wherever_it_is_taken(where):
    assert not is_elementwise(Given(HIDDEN[where]), LIKES)


@pytest.mark.slow
def test_rows_of_their_own_are_elementwise_where_rows_are_cut():
    assert is_elementwise(InLists(0.1), [LIKES[0], LIKES[2]])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Counting, "depends on the other variables"),
        (lambda: Uncopied(0.1), "does not copy it, but raises TypeError"),
        (lambda: CountsOne(which=0), "changes what it keeps for all"),
        (lambda: CountsOne(which=1), "changes what it keeps for all"),
        (lambda: CountsOne(which=3), "changes what it keeps for all"),
        (lambda: Rows(0.1), "it moves no variable"),
        (lambda: RawSlots(0.1), "or by `add_variable_from_reference`"),
        (Frozen, "it moves no variable"),
        (Broken, "a copy with variables of float32 raises KeyError: 'no/such'"),
    ],
    ids=[
        "state of all variables",
        "no copy",
        "state of all, by the first",
        "by the second",
        "by the last",
        "no update",
        "variables of TensorFlow",
        "nothing moves",
        "no build",
    ],
)
def test_what_cannot_update_variables_apart_says_why(make, reason):
    with pytest.raises(NotProven, match=reason):
        is_elementwise(make(), LIKES)


@pytest.mark.slow
def test_the_optimizer_is_left_as_it_is():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = optimizers.Adam(schedule)
    assert is_elementwise(optimizer, LIKES)
    assert not optimizer.built
    assert optimizer.get_config()["learning_rate"]["class_name"] == "ExponentialDecay"
