"""Weights that are sharded along a second axis of a mesh train as on one device."""

import collections
import contextlib
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from keras import layers

import tfdp
from tfdp.strategy.xla import device_variables, mesh_sharding

ROWS, STEPS = 16, 5
MESHES = [(4, 2), (2, 4), (8, 1), (1, 8)]
_RNG = np.random.default_rng(0)
WORDS = _RNG.integers(0, 64, [ROWS * STEPS, 8]).astype("int32")
VECTORS = _RNG.normal(size=[ROWS * STEPS, 16]).astype("float32")
IMAGES = _RNG.normal(size=[ROWS * STEPS, 8, 8, 3]).astype("float32")
LABELS = _RNG.integers(0, 8, [ROWS * STEPS]).astype("int32")


@pytest.fixture(autouse=True)
def drops_all_copies(monkeypatch):
    """The host keeps no copy of a shard, as of those of large weights."""
    monkeypatch.setattr(device_variables, "SMALLEST_DROPPED", 1)


def mlp():
    """Two layers, by columns and then by rows."""
    first = layers.Dense(32, "relu", name="up")
    x = layers.Dense(16, name="down")(first(given := keras.Input([16])))
    return keras.Model(given, layers.Dense(8, name="top")(layers.Dropout(0.2)(x)))


def transformer(use_bias=True):
    """Attention by heads, with dropout."""
    given = keras.Input([8], dtype="int32")
    x = layers.Embedding(64, 16, name="words")(given)
    attend = layers.MultiHeadAttention(8, 4, dropout=0.1, use_bias=use_bias, name="attention")
    y = layers.LayerNormalization()(x)
    x = x + layers.Dropout(0.1)(attend(y, y))
    up = layers.Dense(32, "gelu", use_bias=use_bias, name="up")
    x = x + layers.Dense(16, name="down")(up(layers.LayerNormalization()(x)))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(given, layers.Dense(8, name="top")(x))


class Tied(layers.Layer):
    """A table of words, by which the output's probabilities are computed as well."""

    def build(self, _):
        self.table = self.add_weight(shape=[64, 16], name="table")

    def call(self, words):
        x = tf.reduce_mean(tf.gather(self.table, words), 1)
        return tf.linalg.matmul(tf.tanh(x), self.table, transpose_b=True)


def tied():
    return keras.Sequential([keras.Input([8], dtype="int32"), Tied(name="tied")])


def cnn():
    """Convolutions of each kind of group, with the batch's statistics and overlapping windows."""
    return keras.Sequential(
        [
            keras.Input([8, 8, 3]),
            layers.Conv2D(8, 3, padding="same", name="plain"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(3, 2),
            layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, name="of_channels"),
            layers.Conv2D(16, 3, groups=2, padding="same", name="in_groups"),
            layers.Flatten(),
            layers.Dense(8, name="top"),
        ]
    )


class Experts(layers.Layer):
    """Two experts of two layers each, whose outputs a third layer weighs."""

    def build(self, shape):
        self.gate = self.add_weight(shape=[shape[-1], 2], name="gate")
        self.up = self.add_weight(shape=[2, shape[-1], 32], name="up")
        self.down = self.add_weight(shape=[2, 32, shape[-1]], name="down")

    def call(self, x):
        weights = tf.nn.softmax(x @ self.gate)
        hidden = tf.nn.relu(tf.einsum("bi,eio->beo", x, self.up))
        return tf.einsum("be,beh,eho->bo", weights, hidden, self.down)


def experts():
    given = [keras.Input([16]), layers.Dense(16, "tanh"), Experts(name="experts")]
    return keras.Sequential([*given, layers.Dense(8, name="top")])


class FusedAttention(layers.Layer):
    """Attention of eight heads whose queries, keys and values are computed by one product."""

    def __init__(self, form, **options):
        super().__init__(**options)
        self.form = form

    def build(self, shape):
        shapes = {"by three and heads": [3, 8, 4], "by heads and three": [8, 12]}
        self.qkv = self.add_weight(shape=[shape[-1], *shapes.get(self.form, [96])], name="qkv")
        self.out = self.add_weight(shape=[32, shape[-1]], name="out")

    def call(self, x):
        match self.form:
            case "by three and heads":
                qkv = tf.unstack(tf.einsum("btd,dshk->btshk", x, self.qkv), axis=2)
            case "by heads and three":
                qkv = tf.split(tf.einsum("btd,dhk->bthk", x, self.qkv), 3, axis=-1)
            case "flat, heads first":
                qkv = tf.unstack(tf.reshape(x @ self.qkv, [-1, 8, 8, 3, 4]), axis=3)
            case "flat, three first":
                qkv = tf.unstack(tf.reshape(x @ self.qkv, [-1, 8, 3, 8, 4]), axis=2)
            case "flat, split":
                thirds = tf.split(x @ self.qkv, 3, axis=-1)
                qkv = [tf.reshape(each, [-1, 8, 8, 4]) for each in thirds]
        q, k, v = qkv
        weights = tf.nn.softmax(tf.einsum("bshd,bthd->bhst", q, k))
        found = tf.einsum("bhst,bthd->bshd", weights, v)
        return x + tf.reshape(found, [-1, 8, 32]) @ self.out


def fused():
    given = keras.Input([8], dtype="int32")
    x = layers.Embedding(64, 16, name="words")(given)
    x = FusedAttention("flat, split", name="fused")(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(given, layers.Dense(8, name="top")(x))


class FusedExperts(layers.Layer):
    """Experts whose gates and values are halves of one product; two are summed for each token."""

    def __init__(self, count, **options):
        super().__init__(**options)
        self.count = count

    def build(self, shape):
        self.router = self.add_weight(shape=[shape[-1], self.count], name="router")
        self.up = self.add_weight(shape=[self.count, shape[-1], 64], name="up")
        self.down = self.add_weight(shape=[self.count, 32, shape[-1]], name="down")

    def call(self, x):
        gates, values = tf.split(tf.einsum("td,edm->etm", x, self.up), 2, axis=-1)
        found = tf.einsum("etm,emd->etd", values * tf.nn.silu(gates), self.down)
        largest, places = tf.math.top_k(tf.nn.softmax(x @ self.router), 2)
        routed = tf.reduce_sum(tf.one_hot(places, self.count) * largest[..., None], 1)
        return x + tf.reduce_sum(found * tf.transpose(routed)[..., None], 0)


def fused_experts():
    given = [keras.Input([16]), layers.Dense(16, "tanh"), FusedExperts(3, name="experts")]
    return keras.Sequential([*given, layers.Dense(8, name="top")])


OF_TRANSFORMER = {
    "attention/(query|key|value)/kernel": (None, "model", None),
    "attention/(query|key|value)/bias": ("model", None),
    "attention/attention_output/kernel": ("model", None, None),
    "up/kernel": (None, "model"),
    "up/bias": ("model",),
    "down/kernel": ("model", None),
    "words/embeddings": ("model", None),
}
# For each program: what builds it, its inputs, and its layouts.
PROGRAMS = {
    "mlp": (
        *(mlp, VECTORS),
        {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model", None)},
    ),
    "transformer": (transformer, WORDS, OF_TRANSFORMER),
    "transformer without bias": (
        *(functools.partial(transformer, use_bias=False), WORDS),
        {pattern: axes for pattern, axes in OF_TRANSFORMER.items() if "bias" not in pattern},
    ),
    "tied": (tied, WORDS, {"tied/table": ("model", None)}),
    "tied by columns": (tied, WORDS, {"tied/table": (None, "model")}),
    "cnn": (
        *(cnn, IMAGES),
        {
            "plain/kernel": (None, None, None, "model"),
            "of_channels/kernel": (None, None, "model", None),
            "top/kernel": ("model", None),
        },
    ),
    "experts": (
        *(experts, VECTORS),
        {"experts/up": (None, None, "model"), "experts/down": (None, "model", None)},
    ),
    "experts by expert": (experts, VECTORS, {"experts/(up|down)": ("model", None, None)}),
    "fused": (fused, WORDS, {"fused/qkv": (None, "model"), "fused/out": ("model", None)}),
    "fused experts": (
        *(fused_experts, VECTORS),
        {"experts/up": (None, None, "model"), "experts/down": (None, "model", None)},
    ),
}
OPTIMIZERS = {
    "clipped": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5),
    "each clipped": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.05),
    "lamb": lambda: tfdp.optimizers.LAMB(0.01),
    "lars": lambda: tfdp.optimizers.LARS(0.1, momentum=0.9),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "averaged": lambda: keras.optimizers.AdamW(0.01, use_ema=True),
}


def trained(strategy, program, optimizer):
    """Returns the model after five steps."""
    keras.utils.set_random_seed(1)
    build, inputs, _ = PROGRAMS[program]
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(OPTIMIZERS[optimizer](), loss, jit_compile=True)
    model.fit(inputs, LABELS, batch_size=ROWS, shuffle=False, verbose=0)
    return model


@functools.cache
def expected(program, optimizer):
    """Returns the weights that one device has, whose program TensorFlow runs."""
    return [np.asarray(weight) for weight in trained(None, program, optimizer).weights]


def on_mesh(on_devices, sizes, program, **options):
    mesh = dict(zip(("batch", "model"), sizes, strict=True))
    return on_devices(8, mesh=mesh, layout_map=PROGRAMS[program][2], **options)


def check(model, program, optimizer, follow=True):
    """Checks that weights are one device's; returns how many slots are sharded, as they are."""
    sharded = 0
    layouts = model.distribute_strategy.extended.layouts
    for weight in model.trainable_variables:
        shape = tuple(weight.shape)
        name = f"{model.optimizer.name}/{weight.path.replace('/', '_')}_"
        slots = [each for each in model.optimizer.variables if each.path.startswith(name)]
        for layout in (each.value._array.sharding for each in slots if each.shape == shape):
            sharded += layout.shard_shape(shape) != shape
            assert layouts.of_variable(weight.value) == layout or not follow, name
    weights = expected(program, optimizer)
    largest = max(float(np.abs(weight).max()) for weight in weights)
    for found, weight in zip(model.weights, weights, strict=True):
        np.testing.assert_allclose(found, weight, atol=1e-5 * largest, rtol=0)
    return sharded


CASES = [(program, "clipped", sizes) for program in PROGRAMS for sizes in MESHES]
CASES.remove(("experts by expert", "clipped", (2, 4)))  # two experts
CASES.remove(("experts by expert", "clipped", (1, 8)))
CASES += [
    (program, optimizer, sizes)
    for optimizer in OPTIMIZERS
    if optimizer != "clipped"
    # Not that with biases: one of them has a gradient of rounding errors alone, which Adam scales.
    for program in ("mlp", "transformer without bias")
    for sizes in MESHES
]
FAST = [
    ("transformer", "clipped", (4, 2)),
    ("cnn", "clipped", (2, 4)),
    ("mlp", "lamb", (2, 4)),
    ("mlp", "accumulated", (1, 8)),
]


@pytest.mark.parametrize(("program", "optimizer", "sizes"), tiers.cases(CASES, FAST))
def test_weights_are_those_of_one_device(on_devices, program, optimizer, sizes):
    model = trained(on_mesh(on_devices, sizes, program), program, optimizer)
    sharded = check(model, program, optimizer)
    assert sharded >= (0 if sizes[1] == 1 else len(PROGRAMS[program][2]))


@pytest.mark.parametrize(
    ("program", "shard", "sizes"),
    tiers.first_of(
        ("mlp", "parameters", (4, 2)),
        *(("transformer", "parameters", sizes) for sizes in MESHES),
        *((program, "optimizer", (2, 4)) for program in ("mlp", "cnn", "tied", "transformer")),
        *((program, "parameters", (2, 4)) for program in ("mlp", "cnn", "tied", "experts")),
    ),
)
def test_what_is_sharded_along_the_batch_axis_goes_with_it(
    on_devices, program, shard, sizes, monkeypatch
):
    monkeypatch.setattr(mesh_sharding, "SMALLEST_SHARD", 64)
    model = trained(on_mesh(on_devices, sizes, program, shard=shard), program, "each clipped")
    specs = [each.value._array.sharding.spec for each in model.optimizer.variables[2:]]
    sizes_of_slots = [each.value.shape.num_elements() for each in model.optimizer.variables[2:]]
    along_both = {"batch", "model"}.issubset
    assert sizes[1] == 1 or any(map(along_both, specs))
    for spec, size in zip(specs, sizes_of_slots, strict=True):
        # Not the first kernel of the convolutions: no other axis of it is divided.
        assert size < 64 or sizes[0] == 1 or "batch" in spec or program == "cnn"
    check(model, program, "each clipped", follow=shard == "parameters")


@pytest.mark.exhaustive("test_weights_are_those_of_one_device")
def test_a_mesh_may_have_three_axes(on_devices):
    layout_map = {
        "experts/up": ("expert", None, "model"),
        "experts/down": ("expert", "model", None),
    }
    mesh = {"expert": 2, "batch": 2, "model": 2}
    strategy = on_devices(8, mesh=mesh, layout_map=layout_map)
    assert check(trained(strategy, "experts", "clipped"), "experts", "clipped") == 2


def test_files_have_full_values_and_any_mesh_takes_them(on_devices, tmp_path):
    model = trained(on_mesh(on_devices, (2, 4), "mlp"), "mlp", "averaged")
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    model.export(tmp_path / "served", verbose=False)
    weights = model.get_weights()
    keras.utils.set_random_seed(2)  # by which dropout is seeded anew
    one = keras.models.load_model(tmp_path / "model.keras")
    for found, expected_ in zip(one.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, expected_)
    served = tf.saved_model.load(tmp_path / "served")  # whose function needs its variables
    np.testing.assert_allclose(served.serve(VECTORS), one.predict(VECTORS, verbose=0), atol=1e-5)
    keras.utils.set_random_seed(2)
    with on_mesh(on_devices, (4, 2), "mlp").scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    loaded.load_weights(tmp_path / "model.weights.h5")
    for each in (one, loaded):
        each.fit(VECTORS, LABELS, batch_size=ROWS, shuffle=False, verbose=0)
    slot = next(
        each for each in loaded.optimizer.variables if each.path.endswith("up_kernel_velocity")
    )
    assert tuple(slot.value._array.sharding.spec) == (None, "model")
    for found, expected_ in zip(loaded.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected_, atol=1e-5)


def large_transformer():
    """Weights and Adam's state of 21 MiB, most of it in the table of words and in the output."""
    given = keras.Input([4], dtype="int32")
    x = layers.Embedding(4096, 128, name="words")(given)
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(8, 16, name="attention")(y, y)
    x = x + layers.Dense(128, name="down")(layers.Dense(1024, "relu", name="up")(x))
    return keras.Model(given, layers.Dense(4096, name="top", use_bias=False)(x))


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "model"), tiers.first_of((1, 8), (2, 4)))
def test_a_device_needs_no_more_than_a_quarter_of_the_state(on_devices, batch, model, monkeypatch):
    """And none is ever sent more than shards: an eighth of each first value, then its own."""
    sent = collections.Counter()

    def counted(values, shardings):
        arrays = placed(values, shardings)
        for array in arrays:
            for shard in array.addressable_shards:
                sent[shard.device] += shard.data.nbytes
        return arrays

    placed = device_variables.placed
    monkeypatch.setattr(device_variables, "placed", counted)
    layout_map = OF_TRANSFORMER | {"top/kernel": (None, "model")}
    shard = "parameters" if batch > 1 else None
    strategy = on_devices(
        8, mesh={"batch": batch, "model": model}, layout_map=layout_map, shard=shard
    )
    with strategy.scope():
        built = large_transformer()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        built.compile("adam", loss)
    words = np.resize(WORDS, [8, 4])
    built.fit(words, words, batch_size=8, verbose=0)
    state = sum(
        each.value.shape.num_elements() * each.value.dtype.size
        for each in [*built.variables, *built.optimizer.variables]
    )
    assert strategy.explain(built).memory_bytes < state / 4
    assert len(sent) == 8 and max(sent.values()) < state * 3 / 8
