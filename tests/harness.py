"""Trains the same Keras code on one device and under a strategy, and compares everything."""

import contextlib
import dataclasses
import pathlib
import pickle
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiers
from replica_counts import AS_TRACED, CLUSTER_REPLICAS, DEVICE, count_id

SEED = 7
WEIGHT_TOLERANCE = 1e-5  # of the largest weight
LOGICAL_DEVICES = 5

if DEVICE == "GPU" and not CLUSTER_REPLICAS:
    from tfdp.tools.bench.bench_devices import split

    split(4, "GPU")  # each of them sets memory aside
if not CLUSTER_REPLICAS:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES,
    )
if DEVICE == "GPU":
    # Where there is a GPU, Keras compiles one device's steps with XLA unless it is told not to, and
    # no strategy's. XLA draws other numbers, and does nothing before it has a batch.
    keras.Model._resolve_auto_jit_compile = lambda model: False
if AS_TRACED:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

# For the tests where the number itself matters: an even one, too, and more empty shares.
THREE = CLUSTER_REPLICAS or 3
FOUR = [] if CLUSTER_REPLICAS else [4]
on_three_and_four_replicas = pytest.mark.parametrize(
    "replicas", tiers.first_of(THREE, *FOUR), ids=count_id
)


needs_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras has it in later versions"
)


def in_sizes_and_replicas(*every):
    """Gives a test `sizes` of batches and `replicas`: all on three, the first on four, too."""
    pairs = [*((sizes, THREE) for sizes in every), *((every[0], count) for count in FOUR)]
    return pytest.mark.parametrize(
        ("sizes", "replicas"),
        tiers.first_of(*pairs),
        ids=[f"{'-'.join(map(str, sizes))}-{count_id(count)}" for sizes, count in pairs],
    )


@dataclasses.dataclass
class Outcome:
    """What training left behind, as NumPy arrays."""

    weights: list[np.ndarray]
    slots: dict[str, list[np.ndarray]]  # by kind: momentum, velocity, iteration
    seen: Any  # what `use` returned


# The `shard` of strategies for which a test names none; tests of `shard` set it.
SHARD = None

# For tests of what one process holds.
in_one_process = pytest.mark.skipif(bool(CLUSTER_REPLICAS), reason="it is about one process")


def strategy(replicas, **options):
    """A `tfdp.DataParallelStrategy` over the first `replicas` logical devices, or the cluster."""
    import tfdp
    from tfdp.strategy import sharded_variable

    if SHARD and not options.keys() & {"shard", "compression", "synchronization"} and replicas != 1:
        options["shard"] = SHARD
    if options.get("shard") == "parameters":
        sharded_variable.SMALLEST_SHARD = 2  # the tests' models are small
    if CLUSTER_REPLICAS:
        return tfdp.DataParallelStrategy(**{"timeout_seconds": 200, **options})
    return tfdp.DataParallelStrategy(devices=[f"{DEVICE}:{i}" for i in range(replicas)], **options)


def per_replica(strategy, arrays):
    """A distributed value: one array for each replica."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
    )


@contextlib.contextmanager
def graphs_as_traced(as_traced=True):
    """What runs inside runs graphs as they were traced: TensorFlow does not rewrite them."""
    usual = tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": as_traced})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": usual})


def scope(replicas):
    """The scope that `replicas` means: none at all for one device (None)."""
    return contextlib.nullcontext() if replicas is None else strategy(replicas).scope()


def start_over(seed=SEED):
    """The state of a fresh process: layer names, dtype policy, every random seed."""
    keras.utils.clear_session(free_memory=False)  # collecting garbage takes half a second
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(seed)


def build_in_scope(build, replicas=None):
    """Returns `build()` from a fresh state; the optimizer of a built one-device model is built too.

    On one device Keras would build the optimizer inside the first step, where LossScaleOptimizer
    freezes its initial scale into the trace. Under a strategy Keras builds it before.
    """
    start_over()
    with scope(replicas):
        model = build()
    optimizer = getattr(model, "optimizer", None)
    if replicas is None and optimizer is not None and model.built and not optimizer.built:
        optimizer.build(model.trainable_variables)
    if replicas is None:
        report_the_loss_scale(model)
    return model


def report_the_loss_scale(model):
    """A strategy's `fit` adds this callback by itself; on one device the user does."""
    import tfdp

    fit = model.fit

    def fit_with_monitor(*args, callbacks=(), **kwargs):
        monitor = tfdp.callbacks.LossScaleMonitor()
        return fit(*args, callbacks=[monitor, *tf.nest.flatten(callbacks or [])], **kwargs)

    if isinstance(getattr(model, "optimizer", None), keras.optimizers.LossScaleOptimizer):
        model.fit = fit_with_monitor


def train(build, use, replicas=None, one_device_eagerly=True):
    """Builds a model in the scope, uses it, and returns its `Outcome`.

    Args:
      build: A function without arguments that returns a compiled model.
      use: A function of the model; what it returns is compared too.
      replicas: The number of replicas; None means one device and no strategy.
      one_device_eagerly: Whether one device runs operation by operation what replicas run as a
        graph: to trace a step takes it longer than the few steps of a test.
    """
    model = build_in_scope(build, replicas)
    if replicas is None and one_device_eagerly and _may_run_eagerly(model):
        model.run_eagerly = True
    seen = use(model)
    if replicas is not None:
        assert_replicas_identical(model)
    return Outcome(weights(model), slots(model), seen)


def _may_run_eagerly(model):
    """Whether an eager step does what its graph does: XLA draws other numbers."""
    single = getattr(model, "steps_per_execution", 0) == 1  # and compiled, as Keras says it
    return single and model.jit_compile is not True


def trained_once(build, use, one_device_eagerly=True):
    """As `train` on one device; in a cluster rank 0 does it for all ranks."""
    return once(lambda: train(build, use, None, one_device_eagerly))


def once(compute):
    """Returns `compute()`; in a cluster rank 0 computes it for all ranks."""
    if not CLUSTER_REPLICAS:
        return compute()
    board = strategy(None).extended.processes.board
    usual, board.timeout_seconds = board.timeout_seconds, 300.0  # one rank works for all
    try:
        found = pickle.dumps(compute()) if board.rank == 0 else b""
        return pickle.loads(board.from_first("one device's outcome", payload=found).payload)
    finally:
        board.timeout_seconds = usual


# ---- tiny data and models ----


def regression_data(examples=35, features=5, seed=0):
    """Inputs of unequal scale and targets that depend on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, features)).astype("float32")
    x[: examples // 3] *= 3.0  # replicas' shares differ, so that a wrong weighting shows
    y = np.sin(x.sum(1, keepdims=True)) + 0.5 * x[:, :1]
    return x, y.astype("float32")


def dense_model(optimizer=None, loss="mse", metrics=("mae",), features=5, **compile_options):
    """Compiles the smallest model with a hidden layer."""
    model = keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9) if optimizer is None else optimizer
    model.compile(optimizer, loss=loss, metrics=list(metrics), **compile_options)
    return model


def batches_of(sizes, *arrays):
    """A dataset of unknown batch size, whose batches have exactly these sizes.

    Its length is known: at an end it does not expect, TensorFlow may run half a step on one device.
    """

    def generate():
        ends = np.cumsum(sizes)
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            parts = tuple(a[start:end] for a in arrays)
            yield parts if len(parts) > 1 else parts[0]

    specs = tuple(tf.TensorSpec((None, *a.shape[1:]), tf.as_dtype(a.dtype)) for a in arrays)
    signature = specs if len(specs) > 1 else specs[0]
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def ends_late(model, batches, counted=0):
    """Yields the batches, and then ends when what needs no batch has been done.

    One device then has counted the step that finds no batch left: it is the step `counted`, unless
    that is 0 and no such step is counted.
    """
    import tfdp

    yield from batches
    deadline = time.monotonic() + 60
    on_one_device = not isinstance(model.distribute_strategy, tfdp.DataParallelStrategy)
    while on_one_device and int(model.optimizer.iterations) < counted:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)


# ---- using a model ----


def new_folder(tmp_path_factory, name, model):
    """A folder for what `model` writes; under a cluster's strategy it is rank 0's on every rank."""
    from tfdp.communication.replicas import processes_of

    folder = tmp_path_factory.mktemp(name)
    processes = processes_of(model.distribute_strategy)
    return pathlib.Path(processes.from_first(name, str(folder)).value)


def fit_arrays(model, x=None, y=None, batch_size=7, epochs=1, shuffle=False, **fit):
    """Fits on arrays and returns the history.

    By default in five batches of seven examples, which no number of replicas shares evenly.
    """
    if x is None:
        x, y = regression_data()
    return model.fit(
        x, y, batch_size=batch_size, epochs=epochs, shuffle=shuffle, verbose=0, **fit
    ).history


def fit_datasets(make_dataset, epochs=2, then=(), **fit):
    """Returns a `use` that fits, and then may "evaluate" and "predict", on fresh datasets."""

    def use(model):
        seen = {"history": model.fit(make_dataset(), epochs=epochs, verbose=0, **fit).history}
        if "evaluate" in then:
            seen["evaluate"] = model.evaluate(make_dataset(), verbose=0, return_dict=True)
        if "predict" in then:
            seen["predict"] = model.predict(make_dataset(), verbose=0)
        return seen

    return use


class Trace(keras.callbacks.Callback):
    """Records logs, weights and optimizer variables after every batch."""

    def __init__(self):
        super().__init__()
        self.logs, self.weights, self.slots = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append({name: float(value) for name, value in (logs or {}).items()})
        self.weights.append(weights(self.model))
        self.slots.append(slots(self.model))
        assert_replicas_identical(self.model)

    @property
    def steps(self):
        """What `assert_same_outcome` compares."""
        return {"logs": self.logs, "weights": self.weights, "slots": self.slots}


class Interrupts(keras.callbacks.Callback):
    """Ends a training as a signal does, after so many steps."""

    def __init__(self, step):
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


# ---- reading variables ----


def components(variable):
    """Every replica's copy of a Keras or TensorFlow variable."""
    value = getattr(variable, "value", variable)
    if not isinstance(value, (tf.Variable, tf.distribute.DistributedValues)):
        value = variable  # a tf.Variable, whose `value` is a method
    return [np.asarray(c.numpy()) for c in getattr(value, "values", [value])]


def is_accumulator(variable):
    """Whether it holds an open window's gradients, which stay apart until the window closes.

    Under `shard="gradients"` the replicas have their sums.
    """
    mirrored = variable.value.synchronization == tf.VariableSynchronization.ON_WRITE
    return "gradient_accumulator" in variable.name and not mirrored


def is_parted(variable):
    """Whether each replica holds a part of it."""
    return hasattr(getattr(variable, "value", None), "sharding")


def global_value(variable):
    """The one value that stands for all replicas: an open window's gradients add up."""
    if is_parted(variable):
        return np.asarray(variable.numpy())
    copies = components(variable)
    value = np.sum(copies, axis=0) if is_accumulator(variable) else copies[0]
    if CLUSTER_REPLICAS and is_accumulator(variable):
        value = variable.value.numpy()  # the sum over all processes, too
    return np.asarray(value, np.float64) if value.dtype.kind == "V" else value


def weights(model):
    """The model's weights."""
    return [global_value(v) for v in model.weights]


def optimizers(model):
    """The optimizers a model keeps as attributes of its own, or else the compiled one."""
    kept = {
        id(value): value
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer) and name != "optimizer"
    }
    return list(kept.values()) or [model.optimizer]


def slots(model):
    """Every optimizer variable by its kind: momenta, counters, loss scale, accumulators."""
    found = {}
    for optimizer in optimizers(model):
        for variable in optimizer.variables:
            kind = variable.name.rsplit("_", 1)[-1]
            found.setdefault(kind, []).append(global_value(variable))
    return found


def state(model):
    """Everything that must be bit-identical on all replicas."""
    slot_variables = [v for o in optimizers(model) for v in o.variables]
    alike = [v for v in slot_variables if not is_accumulator(v)]
    return [v for v in (*model.variables, *alike) if not is_parted(v)]


# ---- assertions ----


def assert_replicas_identical(model):
    """Asserts that every weight, slot and statistic has the same bits on every replica."""
    variables = state(model)
    assert variables, "The model has no variables to compare."
    for variable in variables:
        first, *others = components(variable)
        for replica, other in enumerate(others, start=1):
            assert first.tobytes() == other.tobytes(), (
                f"`{variable.path}` differs between replica 0 and replica {replica}: "
                f"{first} against {other}."
            )
    distributed = getattr(variables[0].value, "distribute_strategy", None)
    if CLUSTER_REPLICAS and distributed is not None:
        bits = {f"{i}": components(v)[0].tobytes().hex() for i, v in enumerate(variables)}
        distributed.extended.processes.compare("the state", bits)


def assert_close_arrays(actual, expected, tolerance, path):
    """Asserts that arrays of one kind agree within `tolerance` of the largest among them."""
    assert len(actual) == len(expected), path
    largest = [np.abs(e[np.isfinite(e)]).max(initial=0.0) for e in expected if e.dtype.kind == "f"]
    atol = tolerance * max(largest, default=0.0)
    for ordinal, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.shape == e.shape, f"{path}[{ordinal}]: {a.shape} != {e.shape}"
        exact = e.dtype.kind != "f"
        np.testing.assert_allclose(
            a, e, rtol=0, atol=0 if exact else atol, err_msg=f"{path}[{ordinal}]"
        )


def assert_close(actual, expected, tolerance, path="seen"):
    """Asserts that two nests agree; a list of arrays is taken as of one kind."""
    if isinstance(expected, dict):
        assert list(actual) == list(expected), path
        for name in expected:
            assert_close(actual[name], expected[name], tolerance, f"{path}.{name}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], np.ndarray):
        assert_close_arrays(actual, expected, tolerance, path)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), path
        for ordinal, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, e, tolerance, f"{path}[{ordinal}]")
    elif expected is None or isinstance(expected, (str, bytes)):
        assert actual == expected, path
    else:
        assert_close_arrays([np.asarray(actual)], [np.asarray(expected)], tolerance, path)


def assert_same_outcome(
    actual, expected, tolerance=WEIGHT_TOLERANCE, slot_tolerance=None, seen_tolerance=None
):
    """Asserts that two `Outcome`s agree in weights, slots and all that was seen."""
    assert_close_arrays(actual.weights, expected.weights, tolerance, "weights")
    assert_close(actual.slots, expected.slots, slot_tolerance or 3 * tolerance, "slots")
    assert_close(actual.seen, expected.seen, seen_tolerance or 3 * tolerance, "seen")
