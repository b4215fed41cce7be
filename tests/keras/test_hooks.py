"""The hooks into Keras and TensorFlow: what they wrap is what they were written for."""

import keras
import pytest
import tensorflow as tf

import tfdp.strategy.data_parallel  # noqa: F401, registers a hook of its own
from tfdp import keras as tfdp_keras
from tfdp.base import hooks
from tfdp.base.hooks import versions

tfdp_keras.install()
HOOKS = {versions.title(hook.owner, hook.name): hook for hook in hooks.installed()}
RELIED_ON = {versions.title(owner, name): (owner, name) for owner, name in hooks.relied_on()}


@pytest.mark.parametrize("package", ["keras", "tensorflow"])
def test_the_version_installed_is_one_that_was_tested(package):
    assert versions.current(package) in versions.tested(package)


@pytest.mark.parametrize("title", sorted(RELIED_ON))
def test_a_function_is_the_one_that_tfdp_was_written_for(title):
    """Where one is not: read what has changed there, mend the hook, then write its fingerprint."""
    owner, name = RELIED_ON[title]
    package = versions.package_of(owner)
    expected = versions.tested(package)[versions.current(package)]
    assert versions.fingerprint(vars(owner)[name]) == expected.get(title)


@pytest.mark.parametrize("package", ["keras", "tensorflow"])
def test_every_fingerprint_is_of_a_function_that_is_relied_on(package):
    assert versions.tested(package)[versions.current(package)].keys() == {
        title for title, (owner, _) in RELIED_ON.items() if versions.package_of(owner) == package
    }


@pytest.mark.parametrize("title", sorted(HOOKS))
def test_a_hook_is_in_place_and_says_why(title):
    hook = HOOKS[title]
    assert hooks.function(vars(hook.owner)[hook.name]).tfdp_hook
    assert hook.reason


def test_installing_twice_wraps_once():
    before = [vars(hook.owner)[hook.name] for hook in HOOKS.values()]
    tfdp_keras.install()
    assert [vars(hook.owner)[hook.name] for hook in HOOKS.values()] == before


def test_hooks_change_nothing_without_a_tfdp_strategy():
    values = tf.constant([1.0, 3.0])
    mean = keras.losses.MeanSquaredError()
    assert float(mean(values, tf.zeros_like(values))) == 5.0
    metric = keras.metrics.Mean()
    metric.update_state(2.0)
    metric.update_state(tf.constant(4.0))
    assert float(metric.result()) == 3.0
