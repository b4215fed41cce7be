"""Layouts that are derived from programs: Megatron's, and those of what it does not have."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers, ops
from strategy.xla import test_meshes as meshes

from tfdp.partition.source import SourceGraph
from tfdp.strategy.xla import auto_layout
from tfdp.strategy.xla.axis_groups import Weight

COLUMNS, ROWS = (None, "model"), ("model", None)


def derived(model, size=2, smallest=0, train=False):
    """Returns the layouts of a model's weights, of its forward pass or of a step of training."""

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x)))
        if train:
            model.optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    if train:
        model.compile("adam")
        model.optimizer.build(model.trainable_variables)
    given = tf.TensorSpec([4, *model.inputs[0].shape[1:]], model.inputs[0].dtype)
    program = tf.function(step).get_concrete_function(given)
    first = len(program.inputs) - len(program.captured_inputs)
    by_handle = {id(weight.value.handle): weight for weight in model.weights}
    weights = {
        place: Weight(weight.path, tuple(weight.shape), 4 * int(np.prod(weight.shape)))
        for place, handle in enumerate(program.captured_inputs, first)
        if (weight := by_handle.get(id(handle))) is not None
    }
    found = auto_layout.auto_layout(
        SourceGraph(program.graph), first, weights, size, smallest=smallest
    )
    assert {layout.path for layout in found} == {weight.path for weight in model.weights}
    for layout, weight in zip(found, weights.values(), strict=True):
        sizes = [size for axis, size in zip(layout.axes, weight.shape, strict=True) if axis]
        assert len(sizes) < 2 and not any(each % size for each in sizes)
        assert layout.bytes_saved == len(sizes) * (weight.bytes - weight.bytes // size)
    return {layout.path: layout for layout in found}


def sharded(found):
    return {path: layout.axes for path, layout in found.items() if any(layout.axes)}


def mlp(*units, given=12):
    x = given = keras.Input([given])
    for place, each in enumerate(units):
        x = layers.Dense(each, "relu", name=f"d{place}")(x)
    return keras.Model(given, x)


@pytest.mark.parametrize("train", tiers.first_of(True, False))
def test_layers_are_sharded_by_columns_and_then_by_rows(train):
    found = derived(mlp(32, 16, 32, 16), train=train)
    assert sharded(found) == {
        "d0/kernel": COLUMNS,
        "d0/bias": ("model",),
        "d1/kernel": ROWS,
        "d2/kernel": COLUMNS,
        "d2/bias": ("model",),
        "d3/kernel": ROWS,
    }
    # Of the first no gradient of its input is computed; what is sent is of so many float32.
    sent = {path: [each.bytes for each in layout.collectives] for path, layout in found.items()}
    assert sent["d0/kernel"] == [] and sent["d1/kernel"] == [4 * 16 * 4]
    assert sent["d2/kernel"] == [4 * 16 * 4] and sent["d3/kernel"] == [4 * 16 * 4]
    assert str(found["d1/kernel"]) == (
        "d1/kernel: ('model', None), by rows; saves 1 KiB; all-reduce of 0.25 KiB"
    )
    assert "others of its axes are sharded with d2/kernel" in str(found["d1/bias"])


def test_what_is_small_or_not_divided_stays_replicated():
    assert not sharded(derived(mlp(32, 16), smallest=2**16))
    assert sharded(derived(mlp(32, 16), smallest=4 * 32 * 16)) == {
        "d0/kernel": COLUMNS,
        "d0/bias": ("model",),
        "d1/kernel": ROWS,
    }
    found = derived(mlp(33, 16))
    assert sharded(found) == {"d1/kernel": COLUMNS, "d1/bias": ("model",)}
    assert "2 does not divide 33" in found["d0/kernel"].why


def of_transformer(bias):
    query = "attention/query/kernel", "attention/key/kernel", "attention/value/kernel"
    expected = dict.fromkeys(query, (None, "model", None))
    if bias:
        expected |= {path.replace("kernel", "bias"): ROWS for path in query}
        expected["up/bias"] = ("model",)
    return expected | {
        "attention/attention_output/kernel": ("model", None, None),
        "up/kernel": COLUMNS,
        "down/kernel": ROWS,
        "words/embeddings": ROWS,
        "top/kernel": COLUMNS,
        "top/bias": ("model",),
    }


@pytest.mark.parametrize("bias", tiers.first_of(True, False))
def test_attention_is_sharded_by_heads_and_a_table_by_words(bias):
    found = derived(meshes.transformer(bias), train=True)
    assert sharded(found) == of_transformer(bias)
    assert found["down/bias"].why == "a residual stream"
    sent = [each for layout in found.values() for each in layout.collectives]
    stream = 4 * 8 * 16 * 4  # the bytes of the residual stream
    # Of the table, and of each layer one forward and one backward.
    assert [each.bytes for each in sent].count(stream) == 5


def test_heads_that_are_not_divided_are_replicated_and_their_columns_are_not_split():
    found = derived(meshes.transformer(), size=16)
    assert not any("attention" in path for path in sharded(found))
    assert sharded(found)["up/kernel"] == COLUMNS


FUSED = {
    "by three and heads": (None, None, "model", None),
    "by heads and three": (None, "model", None),
    "flat, heads first": COLUMNS,
}


def of_fused(form):
    given = keras.Input([8, 16])
    x = layers.Dense(16, name="before")(given)
    return derived(keras.Model(given, meshes.FusedAttention(form, name="fused")(x)), train=True)


@pytest.mark.parametrize("form", FUSED)
def test_a_fused_kernel_is_sharded_by_heads_where_these_are_its_blocks(form):
    assert sharded(of_fused(form)) == {"fused/qkv": FUSED[form], "fused/out": ROWS}


def test_a_fused_kernel_that_is_split_is_sharded_and_its_parts_are_moved():
    found = of_fused("flat, split")
    layouts = {path: axes for path, axes in sharded(found).items() if "fused" in path}
    assert layouts == {"fused/qkv": COLUMNS, "fused/out": ROWS}
    # Of four rows of eight, of each part half of its 32 columns, and of their gradients.
    moved = [each for each in found["fused/qkv"].collectives if each.kind == "all-to-all"]
    assert [each.bytes for each in moved] == 6 * [4 * 8 * 32 * 4 // 2]


def test_a_fused_kernel_whose_heads_are_no_blocks_says_what_it_would_send():
    found = of_fused("flat, three first")
    assert not any("fused" in path for path in sharded(found))
    # Of four rows of eight, the 96 columns.
    said = "Reshape would have what is computed of it gathered, 12 KiB a step"
    assert said in found["fused/out"].why and said in found["fused/qkv"].why


def test_experts_whose_halves_are_one_weight_are_sharded_by_expert_or_by_hidden_units():
    def found(count):
        given = keras.Input([16])
        x = layers.Dense(16, name="before")(given)
        model = keras.Model(given, meshes.FusedExperts(count, name="experts")(x))
        found = derived(model, train=True)
        return {path.split("/")[-1]: each for path, each in found.items() if "experts" in path}

    by_expert = sharded(found(4))
    assert by_expert["up"] == by_expert["down"] == ("model", None, None)
    # Else by their hidden units, of which a device is sent its shards of both halves.
    of_units = found(3)
    assert of_units["up"].axes == (None, None, "model")
    assert of_units["down"].axes == (None, "model", None)
    kinds = {each.kind for layout in of_units.values() for each in layout.collectives}
    assert kinds == {"all-reduce", "all-to-all"}


def test_a_table_that_is_the_output_as_well_is_sharded_by_words():
    found = derived(meshes.tied(), train=True)
    assert list(sharded(found).values()) == [ROWS]
    (layout,) = found.values()
    assert layout.why == "by columns and by rows of a table"


def cnn():
    x = given = keras.Input([8, 8, 3])
    for place, each in enumerate((16, 32, 16)):
        x = layers.Conv2D(each, 3, padding="same", use_bias=False, name=f"c{place}")(x)
        x = layers.BatchNormalization(name=f"n{place}")(x)
        x = layers.MaxPooling2D(2)(layers.ReLU()(x)) if place == 1 else layers.ReLU()(x)
    return keras.Model(given, layers.Dense(8, name="top")(layers.GlobalAveragePooling2D()(x)))


def test_convolutions_are_sharded_by_channels_and_their_normalization_with_them():
    found = sharded(derived(cnn(), train=True))
    of_norm = {f"n1/{name}": ("model",) for name in ("gamma", "beta")}
    assert {path: axes for path, axes in found.items() if "moving" not in path} == {
        "c1/kernel": (None, None, None, "model"),
        **of_norm,
        "c2/kernel": (None, None, "model", None),
        "top/kernel": COLUMNS,
        "top/bias": ("model",),
    }


def test_of_experts_the_hidden_units_are_sharded():
    found = {path.split("/")[-1]: axes for path, axes in sharded(derived(meshes.experts())).items()}
    assert found["up"] == (None, None, "model") and found["down"] == (None, "model", None)


class Twice(layers.Layer):
    """A kernel whose columns are the rows of its next use."""

    def build(self, shape):
        self.square = self.add_weight(shape=[16, 16], name="square")

    def call(self, x):
        return ops.tanh(x @ self.square) @ self.square


def test_a_weight_that_is_used_in_conflicting_ways_is_replicated():
    given = keras.Input([16])
    x = layers.Dense(16, name="before")(given)
    found = derived(keras.Model(given, Twice(name="twice")(x)))
    assert "twice/square" not in sharded(found)


@pytest.mark.parametrize(
    ("program", "sizes"),
    tiers.first_of(
        ("transformer", (4, 2)),
        *((program, sizes) for program in meshes.PROGRAMS for sizes in ((4, 2), (2, 4))),
    ),
)
def test_derived_layouts_train_as_one_device(on_devices, program, sizes, monkeypatch):
    monkeypatch.setattr(auto_layout, "SMALLEST", 0)
    mesh = dict(zip(("batch", "model"), sizes, strict=True))
    strategy = on_devices(8, mesh=mesh, layout_map="auto")
    model = meshes.trained(strategy, program, "clipped")
    assert meshes.check(model, program, "clipped") > 0
    lines = str(strategy.explain(model)).splitlines()[1:]
    assert len(lines) == len(model.weights)
    for weight in model.trainable_variables:
        array = weight.value._array
        if array is None:  # of a graph of Keras, for convolutions in groups
            continue
        is_sharded = array.sharding.shard_shape(array.shape) != array.shape
        (line,) = [line for line in lines if line.startswith(f"{weight.path}: ")]
        assert is_sharded == ("saves" in line)


def test_a_weight_keeps_the_layout_of_the_first_program_that_has_it(on_devices, monkeypatch):
    monkeypatch.setattr(auto_layout, "SMALLEST", 0)
    strategy = on_devices(8, mesh={"batch": 4, "model": 2}, layout_map="auto")
    with strategy.scope():
        first, model = tf.Variable(tf.ones([4, 4]), name="first"), mlp(32, 16)
        model.compile("sgd", "mse")
    strategy.run(lambda: tf.reduce_sum(first))
    x = np.ones([8, 12], "float32")
    model.predict(x, verbose=0)
    layouts = strategy.describe()["layout_map"]
    assert layouts == {
        "d0/kernel": [None, "model"],
        "d0/bias": ["model"],
        "d1/kernel": ["model", None],
    }
    model.fit(x, np.ones([8, 16], "float32"), verbose=0)
    assert strategy.describe()["layout_map"] == layouts


def test_models_of_the_same_names_have_layouts_of_their_own(on_devices):
    strategy = on_devices(8, mesh={"batch": 4, "model": 2}, layout_map="auto")
    for units in 1024, 1027, 2048:
        keras.utils.set_random_seed(0)
        keras.backend.clear_session()
        with strategy.scope():
            model = keras.Sequential([keras.Input([32]), keras.layers.Dense(units, "relu")])
            model.add(keras.layers.Dense(32))
            model.compile("sgd", "mse")
        x = np.ones([8, 32], "float32")
        model.fit(x, x, batch_size=8, verbose=0)
        told = strategy.explain(model)
        saves = f"saves {32 * units * 4 // 2 // 1024} KiB"
        assert (f"dense/kernel: (None, 'model'), by columns; {saves}" in str(told)) == (
            units % 2 == 0
        )


def test_auto_needs_a_mesh_of_two_axes(on_devices):
    for mesh in (None, {"batch": 8}, {"batch": 2, "expert": 2, "model": 2}):
        with pytest.raises(
            ValueError, match="must come with the mesh" if mesh is None else "`mesh`"
        ):
            on_devices(8, mesh=mesh, layout_map="auto")
    with pytest.raises(ValueError, match='must be "auto" or a mapping'):
        on_devices(8, mesh={"batch": 4, "model": 2}, layout_map="megatron")
