"""Which variables are left out: by default, by a pattern, by Keras' method."""

import re

import harness
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from optimizers import problems

from tfdp import optimizers
from tfdp.base.exclusions import checked, excluded
from tfdp.optimizers import BIAS_AND_NORMALIZATION, LAMB, LARS

OPTION = "exclude_from_weight_decay"

IMAGE, SEQUENCE, ROW = (8, 8, 4), (5, 4), (4,)

# A layer, the shape of its input, what is left out by default, and what is not.
LAYERS = {
    "Dense": (lambda: layers.Dense(3), ROW, {"bias"}, {"kernel"}),
    "EinsumDense": (
        lambda: layers.EinsumDense("ab,bc->ac", 3, bias_axes="c"),
        ROW,
        {"bias"},
        {"kernel"},
    ),
    "Conv2D": (lambda: layers.Conv2D(3, 2), IMAGE, {"bias"}, {"kernel"}),
    "SeparableConv2D": (
        lambda: layers.SeparableConv2D(3, 2),
        IMAGE,
        {"bias"},
        {"depthwise_kernel", "pointwise_kernel"},
    ),
    "BatchNormalization": (layers.BatchNormalization, IMAGE, {"gamma", "beta"}, set()),
    "LayerNormalization": (layers.LayerNormalization, SEQUENCE, {"gamma", "beta"}, set()),
    "GroupNormalization": (lambda: layers.GroupNormalization(2), IMAGE, {"gamma", "beta"}, set()),
    "RMSNormalization": (layers.RMSNormalization, SEQUENCE, {"scale"}, set()),
    "MultiHeadAttention": (
        lambda: layers.MultiHeadAttention(2, 3),
        SEQUENCE,
        {f"{part}/bias" for part in ("query", "key", "value", "attention_output")},
        {f"{part}/kernel" for part in ("query", "key", "value", "attention_output")},
    ),
    "LSTM": (lambda: layers.LSTM(3), SEQUENCE, {"bias"}, {"kernel", "recurrent_kernel"}),
    "GRU": (lambda: layers.GRU(3), SEQUENCE, {"bias"}, {"kernel", "recurrent_kernel"}),
    "Bidirectional": (
        lambda: layers.Bidirectional(layers.LSTM(3)),
        SEQUENCE,
        {"forward_lstm/lstm_cell/bias", "backward_lstm/lstm_cell/bias"},
        {
            f"{way}_lstm/lstm_cell/{kind}"
            for way in ("forward", "backward")
            for kind in ("kernel", "recurrent_kernel")
        },
    ),
}


def trainable(make, shape):
    """A layer's variables within a model, so that their paths are a user's."""
    layer, inputs = make(), keras.Input(shape)
    attends = isinstance(layer, layers.MultiHeadAttention)
    outputs = layer(inputs, inputs) if attends else layer(inputs)
    return keras.Model(inputs, outputs).trainable_variables


def sorted_out(variables, patterns=None):
    """The paths of what is left out, and of what is not."""
    flags = excluded(OPTION, patterns, variables)
    assert len(flags) == len(variables)
    return tuple(
        {v.path for v, flag in zip(variables, flags, strict=True) if flag is left_out}
        for left_out in (True, False)
    )


def end_in(paths, names):
    return len(paths) == len(names) and all(
        any(path.endswith(f"/{name}") for path in paths) for name in names
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_biases_and_normalization_are_left_out_by_default_and_no_kernel(kind):
    make, shape, left_out, kept = LAYERS[kind]
    out, within = sorted_out(trainable(make, shape))
    assert end_in(out, left_out), out
    assert end_in(within, kept), within


@pytest.mark.parametrize("kind", LAYERS)
def test_an_empty_list_leaves_nothing_out(kind):
    variables = trainable(*LAYERS[kind][:2])
    assert sorted_out(variables, ()) == (set(), {v.path for v in variables})


def test_a_layer_that_is_called_bias_is_not_one():
    variables = trainable(lambda: layers.Dense(3, name="bias"), ROW)
    assert sorted_out(variables) == ({"bias/bias"}, {"bias/kernel"})


def test_a_pattern_is_searched_for_in_the_whole_path():
    inputs = keras.Input(ROW)
    outputs = layers.Dense(3, name="head")(layers.Dense(3, name="body")(inputs))
    variables = keras.Model(inputs, outputs).trainable_variables
    assert sorted_out(variables, ("^head/",))[0] == {"head/kernel", "head/bias"}
    assert sorted_out(variables, ("body/k", "d/bias$"))[0] == {"body/kernel", "head/bias"}
    assert sorted_out(variables, (".",))[1] == set()


def test_a_variable_of_tensorflow_is_known_by_its_name():
    named = [tf.Variable([1.0], name=name) for name in ("dense/kernel", "dense/bias", "gamma")]
    assert excluded(OPTION, None, named) == (False, True, True)
    assert excluded(OPTION, ("kernel$",), named) == (True, False, False)


@pytest.mark.parametrize("optimizer_class", [LARS, LAMB])
def test_tensorflows_variables_train_as_keras_own(optimizer_class):
    problem = problems.fixed()
    options = {
        "weight_decay": 0.1,
        "exclude_from_weight_decay": ["_1$"],
        "exclude_from_layer_adaptation": ["_0$"],
    }
    expected = problems.steps(
        optimizer_class(0.125, **options), problem.weights, problem.gradients
    )[-1]
    trained = [tf.Variable(w, name=f"variable_{i}") for i, w in enumerate(problem.weights)]
    optimizer = optimizer_class(0.125, **options)
    for gradients in problem.gradients:
        optimizer.apply_gradients(zip(map(tf.constant, gradients), trained, strict=True))
    for variable, weight in zip(trained, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), weight)


def unadapted(**options):
    """One step of LAMB without its ratio: what decays, moves by rate · decay · weight more."""
    problem = problems.fixed()
    optimizer = LAMB(0.125, weight_decay=0.5, exclude_from_layer_adaptation=["."], **options)
    return problem, optimizer


def decayed(optimizer, problem):
    """Which variables decayed in the first step."""
    (after,) = problems.steps(optimizer, problem.weights, problem.gradients[:1])
    _, bare = unadapted()
    bare.weight_decay = None
    (without,) = problems.steps(bare, problem.weights, problem.gradients[:1])
    for a, b, start in zip(after, without, problem.weights, strict=True):
        moved = b - a
        assert np.allclose(moved, 0) or np.allclose(moved, 0.125 * 0.5 * start)
    return [not np.allclose(a, b) for a, b in zip(after, without, strict=True)]


def test_what_is_left_out_of_decay_does_not_decay():
    problem, optimizer = unadapted(exclude_from_weight_decay=["_1$"])
    assert decayed(optimizer, problem) == [True, False, True]


def test_keras_own_method_leaves_out_more():
    problem, optimizer = unadapted(exclude_from_weight_decay=["_1$"])
    optimizer.exclude_from_weight_decay(var_names=["variable_2"])
    assert decayed(optimizer, problem) == [True, False, False]


def test_keras_own_method_knows_a_variable_by_its_own_name():
    problem, optimizer = unadapted(exclude_from_weight_decay=[])
    optimizer.exclude_from_weight_decay(var_names=["^variable_0$"])
    assert decayed(optimizer, problem) == [False, True, True]


def test_what_is_said_of_decay_after_the_build_holds_too():
    problem, optimizer = unadapted(exclude_from_weight_decay=["_1$"])
    trained = problems.variables(problem.weights)
    optimizer.build(trained)
    optimizer.exclude_from_weight_decay(var_list=[trained[2]])
    optimizer.weight_decay = 0.25
    gradients = [tf.constant(g) for g in problem.gradients[0]]
    optimizer.apply(gradients, trained)
    _, bare = unadapted()
    bare.weight_decay = None
    (without,) = problems.steps(bare, problem.weights, problem.gradients[:1])
    moved = [b - v.numpy() for v, b in zip(trained, without, strict=True)]
    np.testing.assert_allclose(moved[0], 0.125 * 0.25 * problem.weights[0])
    assert not np.any(moved[1]) and not np.any(moved[2])


def test_keras_own_method_takes_variables_too():
    kernel, bias = trainable(lambda: layers.Dense(3), ROW)
    optimizer = LARS(0.1, weight_decay=0.5, exclude_from_weight_decay=[])
    optimizer.exclude_from_weight_decay(var_list=[kernel])
    optimizer.build([kernel, bias])
    start = bias.numpy()
    kernel_start = kernel.numpy()
    bias.assign(start + 1)
    optimizer.apply([tf.zeros_like(kernel), tf.zeros_like(bias)])
    np.testing.assert_array_equal(kernel.numpy(), kernel_start)
    assert np.all(bias.numpy() < start + 1)


def test_default_patterns_need_not_be_found():
    kernel, _ = trainable(lambda: layers.Dense(3), ROW)
    assert sorted_out([kernel])[0] == set()
    assert sorted_out([kernel], BIAS_AND_NORMALIZATION)[0] == set()
    with pytest.raises(ValueError, match="'no such' is found in none of"):
        sorted_out([kernel], (*BIAS_AND_NORMALIZATION, "no such"))


def misspelt(option):
    return (
        f"Every pattern of `{option}` must be found in the path of a variable, but 'kernle' is "
        "found in none of hidden/kernel, hidden/bias, dense/kernel, dense/bias. Mend it or leave "
        "it out; the model's own name and the numbers of unnamed layers change when it is loaded."
    )


def misspelling_model(option, inputs_known):
    """A model whose optimizer has a pattern that is in no path."""
    stack = [layers.Dense(2, name="hidden"), layers.Dense(1, name="dense")]
    if inputs_known:
        inputs = keras.Input((5,))
        model = keras.Model(inputs, stack[1](stack[0](inputs)))
    else:
        model = keras.Sequential(stack)
    model.compile(LARS(0.1, **{option: ["hidden", "kernle"]}), "mse")
    return model


@pytest.mark.parametrize("inputs_known", [True, False], ids=["built", "unbuilt"])
@pytest.mark.parametrize("replicas", [None, 2], ids=["one-device", "2-replicas"])
def test_a_pattern_that_is_found_nowhere_stops_fit(replicas, inputs_known):
    option = "exclude_from_layer_adaptation" if replicas else OPTION
    harness.start_over()
    with harness.scope(replicas):
        model = misspelling_model(option, inputs_known)
    x, y = harness.regression_data(8)
    with pytest.raises(ValueError, match="Mend it or leave it out") as error:
        model.fit(x, y, batch_size=4, verbose=0)
    # A Sequential model's name is part of its variables' paths.
    assert str(error.value).replace("sequential/", "") == misspelt(option)


@pytest.mark.parametrize("option", [OPTION, "exclude_from_layer_adaptation"])
def test_a_pattern_that_is_found_nowhere_stops_build(option):
    optimizer = LAMB(**{option: ["kernle"]})
    kernel, bias = trainable(lambda: layers.Dense(3, name="dense"), ROW)
    for _ in range(2):  # it is not taken for built after the first attempt
        with pytest.raises(ValueError, match=f"`{option}` must be found in the path"):
            optimizer.build([kernel, bias])


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("bias$", "must be a list of patterns, but received 'bias$'."),
        (b"bias$", "must be a list of patterns, but received b'bias$'."),
        ({"bias$"}, "must be a list of patterns, but received {'bias$'}."),
        (7, "must be a list of patterns, but received 7."),
        (["bias", "ker(nel"], "must hold regular expressions, but received 'ker(nel' (missing )"),
        ([b"bias"], "must hold regular expressions, but received b'bias' (it is no string)."),
        ([re.compile("bias")], "but received re.compile('bias') (it is no string)."),
        ([3], "must hold regular expressions, but received 3 (it is no string)."),
    ],
)
@pytest.mark.parametrize("option", [OPTION, "exclude_from_layer_adaptation"])
@pytest.mark.parametrize("optimizer_class", [LARS, LAMB])
def test_what_is_no_list_of_patterns_is_refused_at_once(optimizer_class, option, patterns, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        optimizer_class(**{option: patterns})
    assert str(error.value).startswith(f"`{option}` must ")
    assert str(error.value).endswith(
        f'Use {option}=["bias$", "layer_norm"], or None for biases and normalization.'
    )


@pytest.mark.slow
def test_a_loaded_optimizer_warns_of_a_pattern_that_is_found_nowhere(tmp_path, caplog):
    # In the file the paths of a Sequential model begin with its name; once loaded, they do not.
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, name="head")], name="mine")
    options = {"exclude_from_layer_adaptation": ["^mine/"], "exclude_from_weight_decay": ["head"]}
    model.compile(LARS(0.1, **options), "mse")
    model.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)
    model.save(tmp_path / "model.keras")
    with caplog.at_level("WARNING", "tfdp"):
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "tfdp"]
    assert warning.startswith("Every pattern of `exclude_from_layer_adaptation` must be found")
    assert "'^mine/' is found in none of head/kernel, head/bias." in warning
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    loaded.fit(np.ones([4, 3]), np.ones([4, 1]), verbose=0)


def test_patterns_are_kept_as_given():
    assert checked(OPTION, None) is None
    assert checked(OPTION, []) == ()
    assert checked(OPTION, ["a", "b$"]) == ("a", "b$")
    assert LARS(exclude_from_layer_adaptation=("a",)).exclude_from_layer_adaptation == ["a"]
    assert LAMB().exclude_from_layer_adaptation is None
    assert optimizers.BIAS_AND_NORMALIZATION is BIAS_AND_NORMALIZATION
