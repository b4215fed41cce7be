"""Steps that are compiled without running: on CPU devices, and for TPUs that are not there."""

import collections
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.errors import PartitionError, ScopeError

BATCH = tf.TensorSpec([16, 4]), tf.TensorSpec([16, 1])


def compiled_model(strategy, *inputs, **options):
    with strategy.scope():
        model = keras.Sequential([*inputs, keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("adam", "mse", **options)
    return model


@pytest.mark.parametrize("steps", [1, 2])
def test_fit_runs_the_program_that_was_compiled_ahead_of_it(on_devices, steps):
    strategy = on_devices(4)
    model = compiled_model(strategy, steps_per_execution=steps)
    facts = strategy.compile_ahead(model, BATCH)
    assert int(model.optimizer.iterations) == 0
    before = model.get_weights()
    model.fit(np.ones([16 * steps, 4]), np.ones([16 * steps, 1]), batch_size=16, verbose=0)
    assert strategy.explain(model) is facts
    assert model.train_function.steps.experimental_get_tracing_count() == 1
    assert not any(map(np.array_equal, before, model.get_weights()))


@pytest.mark.parametrize("count", [1, 4])
def test_several_steps_in_one_program_copy_no_more_than_one(on_devices, count, monkeypatch):
    """What is carried from step to step is written in place, as far as a step alone does so.

    A step whose small variables are joined, as those of several steps are not, copies them joined.
    """
    monkeypatch.setattr("tfdp.strategy.xla.executables.AT_MOST", 1)

    def copied(steps):
        strategy = on_devices(count)
        with strategy.scope():
            hidden = [keras.layers.Dense(units, "relu") for units in (32, 24)]
            model = keras.Sequential([keras.Input([4]), *hidden, keras.layers.Dense(1)])
            model.compile("adam", "mse", steps_per_execution=steps)
        assert strategy.compile_ahead(model, BATCH).weights_copied == 0
        text = model.train_function.steps._latest._compiled.as_text()
        shapes = re.findall(r"= (\w+\[[\d,]+\])\S* copy\(", text)  # numbers are not counted
        return collections.Counter(shapes)

    assert copied(4) <= copied(1)


def test_to_compile_ahead_changes_no_weight(on_devices):
    strategy = on_devices(2)
    model = compiled_model(strategy, keras.Input([4]))
    before = model.get_weights()
    for method in ("fit", "evaluate"):
        strategy.compile_ahead(model, BATCH, method)
    strategy.compile_ahead(model, BATCH[0], "predict")
    np.testing.assert_equal(model.get_weights(), before)


def test_evaluate_and_predict_run_what_was_compiled_ahead(on_devices):
    strategy = on_devices(2)
    model = compiled_model(strategy)
    evaluating = strategy.compile_ahead(model, BATCH, "evaluate")
    predicting = strategy.compile_ahead(model, BATCH[0], "predict")
    model.evaluate(np.ones([16, 4]), np.ones([16, 1]), verbose=0)
    model.predict(np.ones([16, 4]), batch_size=16, verbose=0)
    assert strategy.explain(model, "evaluate") is evaluating
    assert strategy.explain(model, "predict") is predicting


def test_a_function_is_compiled_ahead_of_specifications(on_devices):
    program = on_devices(4).partitioned(lambda x, factor: factor * tf.reduce_sum(x, 0))
    facts = program.ahead(tf.TensorSpec([8, 16]), factor=2.0)
    assert facts.collectives == {"all-reduce": 1}
    assert facts.bytes_moved == 16 * 4
    np.testing.assert_array_equal(program(tf.ones([8, 16]), factor=2.0), np.full(16, 16.0))
    assert program.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    "batch",
    [
        ((16, 4), (16, 1)),
        16,
        (np.ones([16, 4], np.float32), [1.0] * 16),
        "dataset",
    ],
    ids=["shapes", "size", "list", "dataset"],
)
def test_a_batch_has_something_in_place_of_each_tensor(on_devices, batch):
    strategy = on_devices(2)
    if batch == "dataset":
        batch = tf.data.Dataset.from_tensors((np.ones([16, 4]), np.ones([16, 1])))
    model = compiled_model(strategy, keras.Input([4]))
    with pytest.raises(TypeError, match=r"tf\.TensorSpec.*element_spec"):
        strategy.compile_ahead(model, batch)


def test_a_model_is_compiled_by_keras_before_its_step_is(on_devices):
    strategy = on_devices(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r"Call `model\.compile`"):
        strategy.compile_ahead(model, BATCH)
    assert strategy.compile_ahead(model, BATCH[0], "predict").weights_copied == 0


def test_a_model_of_no_such_strategy_is_not_compiled_ahead(on_devices):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ScopeError, match=r"made outside it.*strategy\.scope"):
        on_devices(2).compile_ahead(model, BATCH)


@pytest.mark.parametrize(
    "spec, error, fix",
    [
        (tf.TensorSpec([None, 4]), ValueError, "drop_remainder=True"),
        (tf.TensorSpec([8], tf.string), PartitionError, "returns a text"),
        (tf.RaggedTensorSpec([8, None]), TypeError, "to_tensor"),
    ],
)
def test_what_no_program_can_be_given_is_refused(on_devices, spec, error, fix):
    with pytest.raises(error, match=fix):
        on_devices(2).partitioned(lambda x: x).ahead(spec)


def test_another_method_is_refused(on_devices):
    strategy = on_devices(1)
    with pytest.raises(ValueError, match=r'"fit", "evaluate" or "predict".*\'train\''):
        strategy.compile_ahead(compiled_model(strategy), BATCH, "train")


def test_a_topology_that_cannot_be_described_is_refused():
    pytest.importorskip("jax")
    import tfdp

    with pytest.raises(ValueError, match=r'received \'v5e:round\'.*"v5e:2x4".*jax\[tpu\]'):
        tfdp.XLAStrategy("v5e:round")


def test_what_is_described_only_is_compiled_and_does_not_run(on_devices, monkeypatch):
    jax = pytest.importorskip("jax")
    import tfdp

    monkeypatch.setattr("tfdp.strategy.xla.xla_devices.described", lambda name: jax.devices()[:4])
    monkeypatch.setattr("tfdp.strategy.xla.mesh_sharding.are_described", lambda devices: True)
    strategy = tfdp.XLAStrategy("v5e:2x2")
    model = compiled_model(strategy, keras.Input([4]))
    assert strategy.compile_ahead(model, BATCH).collectives["all-reduce"] >= 1
    before = model.get_weights()
    with pytest.raises(RuntimeError, match="compile_ahead"):
        model.fit(np.ones([16, 4]), np.ones([16, 1]), batch_size=16, verbose=0)
    np.testing.assert_equal(model.get_weights(), before)


SCRIPT = pathlib.Path(__file__).parent / "scripts" / "ahead.py"


@pytest.fixture(scope="module")
def for_tpus():
    """What steps are for TPUs, by topology and model; libtpu is in a process of its own."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, of 220 MB, is not installed: `pip install tfdp[tpu]`")
    environment = {
        **os.environ,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_ACCELERATOR_TYPE": "v5litepod-4",
        # It takes no chip, which one process at a time could have.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT], capture_output=True, text=True, env=environment, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


on_cpu_devices = "test_fit_runs_the_program_that_was_compiled_ahead_of_it"


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive(on_cpu_devices)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x4"])
@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer", "lstm"])
def test_a_step_for_tpus_sums_gradients_once_and_leaves_the_host_alone(for_tpus, topology, model):
    found = for_tpus[topology][model]
    assert set(found["collectives"]) == {"all-reduce"}
    assert not found["host_transfers"]
    assert found["weights_copied"] == 0
    # A gradient, in float32, of each weight, and beside it what is summed of the loss.
    assert 0 < found["bytes_moved"] - 4 * found["weights"] <= found["other_bytes"]
    assert found["memory_bytes"] < 16e9


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive(on_cpu_devices)
def test_a_sharded_optimizer_needs_less_memory_on_a_tpu(for_tpus):
    plain, sharded = (for_tpus["v5e:2x2"][name] for name in ("mlp", "sharded"))
    assert sharded["memory_bytes"] < plain["memory_bytes"]
    # Each of three kernels is gathered once.
    assert sharded["collectives"]["all-gather"] <= 3
    gathered = 3 * 4 * 256 * 256
    assert gathered < sharded["bytes_moved"] - 4 * sharded["weights"] <= gathered + 16
    assert sharded["weights_copied"] == 0 and not sharded["host_transfers"]


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive(
    "strategy/xla/test_gathers.py::test_each_layer_gathers_its_weight_forward_and_backward"
)
def test_a_weight_is_gathered_on_tpus_at_once_and_not_in_a_loop_of_its_product(for_tpus):
    found = for_tpus["large activations"]
    # Two kernels forward, and the second one once more backward.
    assert found["all-gather"] == 3 and set(found) == {"all-gather", "all-reduce"}


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive(
    "strategy/xla/test_compile_facts.py::test_a_callback_is_a_transfer_to_the_host"
)
def test_a_callback_in_a_program_for_tpus_is_seen(for_tpus):
    assert for_tpus["callback"] == ["send", "recv"]


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive("strategy/xla/test_precision.py::test_what_float32_is_on_a_platform")
def test_a_product_of_more_precision_has_more_passes_on_a_tpu(for_tpus):
    found = for_tpus["precision"]
    names = {level: list(products) for level, (products, _) in found.items()}
    assert names == {
        "default": ["bfloat16"], "high": ["bfloat16 x 3"], "highest": ["bfloat16 x 6"]
    }  # fmt: skip
    once, cycles = found["default"][1], {level: cycles for level, (_, cycles) in found.items()}
    assert cycles["high"] == pytest.approx(3 * once, rel=0.2)
    assert cycles["highest"] == pytest.approx(6 * once, rel=0.2)


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive("test_a_function_is_compiled_ahead_of_specifications")
def test_a_convolution_that_a_program_for_tpus_returns_is_made_whole(for_tpus):
    assert for_tpus["convolved"] == {"all-gather": 1}


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.exhaustive("test_what_no_program_can_be_given_is_refused")
def test_a_step_that_does_not_fit_into_a_chip_says_what_to_do(for_tpus):
    assert "15.75G" in for_tpus["too large"]
    assert 'shard="optimizer"' in for_tpus["too large"]
    assert 'layout_map="auto" with mesh={"batch": 2, "model": 2}' in for_tpus["too large"]


def compiled_for_gpus():
    """What steps are for GPUs, by model, and by kind; JAX's plugin is in a process of its own."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # so that the plugin asks for no driver
    done = subprocess.run(
        [sys.executable, SCRIPT, "gpus"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.exhaustive(on_cpu_devices)
def test_a_step_for_gpus_sums_gradients_and_leaves_the_host_alone():
    names = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
    if not any(map(_is_installed, names)):
        pytest.skip("JAX's plugin for GPUs is not installed: `pip install tfdp[xla-cuda12]`")
    for name, found in compiled_for_gpus().items():
        assert set(found["collectives"]) == {"all-reduce"}, name
        assert not found["host_transfers"], name
        assert found["weights_copied"] == 0, name
        assert 0 < found["bytes_moved"] - 4 * found["weights"] <= found["other_bytes"], name


def _is_installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("topology", ["h100", "h100:", "b200:0", "a100:2x", "h100:2x4x8"])
def test_gpus_of_unknown_number_are_refused(topology):
    pytest.importorskip("jax")
    import tfdp

    with pytest.raises(ValueError, match=rf"received '{topology}'.*:8\" or .*:2x8"):
        tfdp.XLAStrategy(topology)


def test_gpus_without_jax_s_plugin_name_what_to_install(monkeypatch):
    pytest.importorskip("jax")
    from jax.experimental import topologies

    import tfdp

    def get_topology_desc(**given):
        raise NotImplementedError(f"topology not implemented for {given['platform']}")

    monkeypatch.setattr(topologies, "get_topology_desc", get_topology_desc)
    with pytest.raises(ValueError, match=r"implemented for cuda.*xla-cuda12.*JAX_PLATFORMS=cpu"):
        tfdp.XLAStrategy("h100:8")
