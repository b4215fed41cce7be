"""What callbacks are given of a step that nobody waits for, and what waits for a step in `fit`."""

import collections
import copy
import itertools
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.keras.trainer.late_logs import LateLogs

jax = pytest.importorskip("jax")
STEPS = 12


class Waits:
    """Counts what a program waits for, or sends, while it is open."""

    def __init__(self, monkeypatch):
        self.found = collections.Counter()
        array = type(jax.numpy.ones([]))
        value, put = array._value, jax.device_put
        for name in ("block_until_ready", "__array__", "__float__", "item", "tolist"):
            monkeypatch.setattr(array, name, self._counted(name, getattr(array, name)))
        monkeypatch.setattr(array, "_value", property(self._counted("fetched", value.fget)))
        monkeypatch.setattr(jax, "device_put", self._counted("sent", put))
        for name in ("block_until_ready", "device_get"):
            monkeypatch.setattr(jax, name, self._counted(name, getattr(jax, name)))

    def _counted(self, name, function):
        def call(*args, **kwargs):
            self.found[name] += 1
            return function(*args, **kwargs)

        return call


class Watches(keras.callbacks.Callback):
    """Notes how often was waited, and sent, before each batch; reads the logs of some."""

    def __init__(self, waits, reads=()):
        super().__init__()
        self.waits, self.reads, self.noted, self.losses = waits, reads, [], {}

    def on_train_batch_begin(self, batch, logs=None):
        self.noted.append(dict(self.waits.found))

    def on_train_batch_end(self, batch, logs=None):
        if batch in self.reads:
            self.losses[batch] = logs["loss"]


def trained(strategy, callbacks=(), **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=[STEPS * 8, 4]), rng.normal(size=[STEPS * 8, 1])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
    history = model.fit(data, callbacks=list(callbacks), **{"verbose": 0, **options})
    return model, history


@pytest.mark.parametrize("count", [1, 4])
def test_no_step_of_fit_waits_for_the_devices_and_each_sends_its_batch_alone(
    count, on_devices, monkeypatch
):
    watches = Watches(Waits(monkeypatch))
    trained(on_devices(count), [watches])
    steady = [collections.Counter(each) for each in watches.noted[1:]]
    between = [after - before for before, after in itertools.pairwise(steady)]
    assert len(between) == STEPS - 2
    # To one device JAX sends it as it calls the program, without a word of Python's.
    assert all(each == ({"sent": 1} if count > 1 else {}) for each in between), between


def test_a_callback_that_reads_logs_waits_for_that_batch_and_no_other(on_devices, monkeypatch):
    watches = Watches(Waits(monkeypatch), reads={4, 8})
    trained(on_devices(2), [watches])
    fetched = [each.get("fetched", 0) for each in watches.noted]
    grown = [batch for batch in range(1, STEPS - 1) if fetched[batch + 1] > fetched[batch]]
    assert grown == [4, 8]
    assert {type(each) for each in watches.losses.values()} == {float}


def test_losses_are_those_that_keras_gives_on_one_device(on_devices):
    class NoWaits:
        found = {}

    one, late = (Watches(NoWaits(), reads=range(STEPS)) for _ in range(2))
    _, expected = trained(tf.distribute.get_strategy(), [one])
    _, found = trained(on_devices(2), [late])
    np.testing.assert_allclose(
        [late.losses[each] for each in range(STEPS)],
        [one.losses[each] for each in range(STEPS)],
        rtol=1e-5,
    )
    for name, values in expected.history.items():
        np.testing.assert_allclose(found.history[name], values, rtol=1e-5)


def test_the_bar_reads_what_it_shows_and_ends_with_the_epoch_s_logs(
    on_devices, monkeypatch, capsys
):
    monkeypatch.setattr(keras.utils.Progbar, "__init__", _shown_once(keras.utils.Progbar.__init__))
    watches = Watches(Waits(monkeypatch))
    _, history = trained(on_devices(2), [watches], verbose=1)
    fetched = [each.get("fetched", 0) for each in watches.noted]
    assert fetched[1] > fetched[0]  # the first batch is shown
    assert fetched[-1] == fetched[1]
    said = capsys.readouterr().out
    assert f"{STEPS}/{STEPS}" in said.rsplit("\n", 2)[-2]
    assert f"loss: {history.history['loss'][0]:.4f}" in said.rsplit("\n", 2)[-2]


def _shown_once(original):
    """Makes a bar that shows its first batch and its last one."""

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.interval = 1e6

    return init


READS = {
    "item": lambda logs: {"a": logs["a"], "b": logs["b"]},
    "get": lambda logs: {"a": logs.get("a"), "b": logs.get("b")},
    "items": lambda logs: dict(list(logs.items())),
    "values": lambda logs: dict(zip("ab", logs.values(), strict=True)),
    "dict": dict,
    "stars": lambda logs: {**logs},
    "update": lambda logs: _updated({}, logs),
    "union": lambda logs: logs | {},
    "union from the left": lambda logs: {} | logs,
    "copy": lambda logs: logs.copy(),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "json": lambda logs: json.loads(json.dumps(logs)),
    "pickle": lambda logs: pickle.loads(pickle.dumps(logs)),
    "repr": lambda logs: eval(repr(logs)),
    "pop": lambda logs: {"a": logs.pop("a"), "b": logs.pop("b")},
    "loop": lambda logs: {name: logs[name] for name in logs},
}


def _updated(given, logs):
    given.update(logs)
    return given


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_numbers_are_read_however_a_callback_asks(read):
    found = read(LateLogs({"b": jax.numpy.float32(0.5), "a": jax.numpy.int32(2)}))
    assert found == {"a": 2.0, "b": 0.5}
    assert {type(each) for each in dict(found).values()} == {float}


def test_what_a_callback_writes_is_kept():
    logs = LateLogs({"loss": jax.numpy.float32(0.5)})
    logs["rate"] = 0.1
    assert logs == {"loss": 0.5, "rate": 0.1}
