"""The hooks into Keras and TensorFlow: what they wrap is what they were written for."""

import hashlib
import inspect

import keras
import pytest
import tensorflow as tf

import tfdp.keras_adapter
from tfdp.keras_adapter import _keras, hooks

tfdp.keras_adapter.install()
HOOKS = {
    f"{hook.owner.__name__.split('.')[-1]}.{hook.name}": hook for hook in tfdp.keras_adapter.HOOKS
}

# The first digits of the SHA-256 of the source that each hook wraps, in Keras 3.15.1 and TensorFlow
# 2.21.0. Where one differs, that function has changed: read the change, mend the hook, then write
# the new one.
FINGERPRINTS = {
    "ArrayDataAdapter.get_tf_dataset": "2ab7c0854bf8",
    "BackupAndRestore._load_model": "2d9676e74b55",
    "BackupAndRestore._save_model": "5eb7b53ca13a",
    "BackupAndRestore.on_train_begin": "dfdb7eac4983",
    "BaseOptimizer._check_variables_are_known": "7fe637cd983a",
    "BaseOptimizer.build": "e9d310fddad5",
    "BatchNormalization._moments": "2ba739b46f4f",
    "CSVLogger.on_train_begin": "9e604039df27",
    "EpochIterator._enumerate_iterator": "376e3e16a928",
    "EpochIterator._interrupted_warning": "5ee6d254d8ac",
    "GradientTape.batch_jacobian": "42f72669ad9a",
    "GradientTape.gradient": "9b8697dadc28",
    "GradientTape.jacobian": "f39ac00478b4",
    "Equalization._custom_histogram_fixed_width": "260b58eed6cd",
    "H5IOStore._get_h5_file": "1e51c80b9c23",
    "Layer.__call__": "4fb7e42e4ffd",
    "Layer._clear_losses": "9e906f0d5c29",
    "Layer._get_own_losses": "bce659968498",
    "Layer.add_loss": "7f70f38e2f25",
    "Loss.__call__": "f42c42282ee8",
    "LossScaleOptimizer.check_finite": "b0ce693a4ff0",
    "Mean.update_state": "addc194e254f",
    "Model.export": "f11ed3b71eb3",
    "RNN.call": "e580bb43258d",
    "ReplicaContext.all_gather": "98e28fe9d46b",
    "ReplicaContextBase.all_reduce": "940f283294a1",
    "ReplicaContextBase.replica_id_in_sync_group": "6056ef43816f",
    "SeedGenerator.next": "d2174a08ab35",
    "Sum.update_state": "c378d5550155",
    "TFEpochIterator.__init__": "901af2700297",
    "TFEpochIterator._get_iterator": "b986aa8a9d22",
    "TFOptimizer.__init__": "09edc473f7c6",
    "TFOptimizer._all_reduce_sum_gradients": "953512efa56c",
    "TFOptimizer._backend_update_step": "00bd759c099a",
    "TFOptimizer.add_variable_from_reference": "fa3499082002",
    "TensorBoard.set_model": "36b4c489a668",
    "TensorFlowTrainer._aggregate_additional_loss": "3e9ee641327e",
    "TensorFlowTrainer._make_function": "bb33b7a0da3d",
    "TensorFlowTrainer._maybe_symbolic_build": "92a504f5eba9",
    "TensorFlowTrainer.evaluate": "a1facf652816",
    "TensorFlowTrainer.fit": "a9a6dc02a7dd",
    "TensorFlowTrainer.make_predict_function": "a772a2efdd90",
    "TensorFlowTrainer.predict": "ee5831d7d217",
    "Trainer.compile": "98ee80c63ae7",
    "Trainer.get_metrics_result": "89f313bc35c1",
    "Variable._direct_assign": "170647e9816d",
    "Variable._initialize": "ab759c22f87f",
    "Variable.assign_add": "02093eccc2e3",
    "Variable.assign_sub": "d5f310723e8b",
    "control_flow_ops.pfor": "68f38a8a3462",
    "io_utils.print_msg": "7470e7db5c9e",
    "legacy_h5_format.save_model_to_hdf5": "089058ee0d32",
    "loss.apply_mask": "61d8938cd866",
    "loss.reduce_values": "60b046214772",
    "loss.reduce_weighted_values": "1976df12ea19",
    "loss.scale_loss_for_distribution": "143cd8a5efb6",
    "loss.unscale_loss_for_distribution": "3903c7ed7f69",
    "nn._compute_moments_sync": "4ef59a47d67b",
    "nn.compute_average_loss": "3683ca7a96dd",
    "nn.scale_regularization_loss": "2adedb87d513",
    "random.dropout": "47a159de0b67",
    "random.normal": "58c75c5521f3",
    "random.randint": "ce8965ddd554",
    "random.uniform": "9ca69437a855",
    "saving_lib.get_temp_dir": "a26ab559de97",
    "saving_lib.save_model": "0b360baae417",
    "saving_lib.save_weights_only": "649839a5ed3a",
    "seed_generator.global_seed_generator": "4ec13060644e",
    "tensorflow.vectorized_map": "c6e29983cef7",
    "trainer.reduce_per_replica": "2e7d54b1e6ed",
}


def fingerprint(function):
    return hashlib.sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()[:12]


def test_every_hook_has_a_fingerprint():
    assert set(HOOKS) == set(FINGERPRINTS)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_a_hooked_function_is_the_one_that_the_hook_was_written_for(name):
    assert fingerprint(HOOKS[name].original) == FINGERPRINTS.get(name)


@pytest.mark.parametrize("name", sorted(HOOKS))
def test_a_hook_is_in_place_and_says_why(name):
    hook = HOOKS[name]
    assert hooks.function(vars(hook.owner)[hook.name]).is_tfdp_hook
    assert hook.wrapper.__doc__


def test_the_keras_installed_is_one_that_was_tested():
    assert keras.__version__ in _keras.TESTED_VERSIONS


def test_installing_twice_wraps_once():
    before = [vars(hook.owner)[hook.name] for hook in HOOKS.values()]
    tfdp.keras_adapter.install()
    assert [vars(hook.owner)[hook.name] for hook in HOOKS.values()] == before


def test_hooks_change_nothing_without_a_tfdp_strategy():
    values = tf.constant([1.0, 3.0])
    mean = keras.losses.MeanSquaredError()
    assert float(mean(values, tf.zeros_like(values))) == 5.0
    metric = keras.metrics.Mean()
    metric.update_state(2.0)
    metric.update_state(tf.constant(4.0))
    assert float(metric.result()) == 3.0
