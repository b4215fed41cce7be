"""All variables of a model are kept, those that Keras does not list too."""

import keras
import meeting
import numpy as np
import tensorflow as tf

import tfdp
from tfdp.base.sharding import Sharding
from tfdp.callbacks.checkpoint import model_variables
from tfdp.callbacks.checkpoint.model_variables import Kept
from tfdp.communication.collectives.meetings import bring_to_first
from tfdp.communication.replicas import OneProcess


class Noise(keras.Layer):
    """A layer that draws as programs for TensorFlow do, and counts by a variable of its own."""

    def __init__(self):
        super().__init__()
        self.generator = tf.random.Generator.from_seed(3)
        self.counts = {"calls": [tf.Variable(2)]}


def build():
    with tfdp.DataParallelStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential(
            [keras.Input([5]), keras.layers.Dropout(0.5), keras.layers.Dense(2), Noise()]
        )
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam())
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
    return model, optimizer


def kept(model):
    alone = OneProcess(local_size=2)
    return dict(model_variables.wholes(alone, "a test", model_variables.copies(model, alone)))


def test_all_variables_have_one_name():
    model, optimizer = build()
    names = {id(variable): name for name, variable in model_variables.named(model).items()}
    owned = [
        (model.layers[0].seed_generator.state, "weight-0"),
        (optimizer.dynamic_scale, "optimizer-3"),
        (model.metrics[0].total, "metric-0"),
        (model.layers[2].counts["calls"][0], "other"),
        (model.layers[2].generator.state, "other"),
        (optimizer.inner_optimizer._u_product, "other"),
    ]
    for variable, name in owned:
        assert names[id(variable)].startswith(name)
    assert len(names) == len(model_variables.named(model)) == 3 + 10 + 2 + 3


def test_what_replicas_keep_equal_is_neither_metrics_nor_generators_nor_sharded():
    model, _ = build()
    named = model_variables.named(model)
    state = model.layers[2].generator.state
    own = {name for name, v in named.items() if name.startswith("metric") or v is state}
    found = model_variables.mirrored(model)
    assert len(own) == 3 and found.keys() == named.keys() - own
    assert all(len(variable.values) == 2 for variable in found.values())
    strategy = tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], shard="optimizer")
    with strategy.scope():
        cut = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
        cut.compile("adam", "mse")
        cut.optimizer.build(cut.trainable_variables)
    slots = {f"optimizer-{n}" for n, v in enumerate(cut.optimizer.variables) if v.shape.rank}
    assert model_variables.named(cut).keys() - model_variables.mirrored(cut).keys() >= slots
    alone = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    assert model_variables.mirrored(alone) == {}


def test_an_attribute_that_holds_itself_is_read_once():
    model, _ = build()
    model.layers[2].counts["itself"] = model.layers[2].counts
    assert len(model_variables.named(model)) == 18


def test_values_return():
    model, optimizer = build()
    saved = kept(model)
    assert saved["metric-0"].shape == (2,)  # a value of each replica
    others = [model.layers[2].counts["calls"][0], optimizer.inner_optimizer._u_product]
    before = [variable.numpy() for variable in others]
    for variable in others:
        variable.assign(9)
    draw = model.layers[2].generator.normal([3])
    for metrics in (False, True):
        model_variables.assign(model, saved, metrics, first_replica=0, replicas=2)
    assert [variable.numpy() for variable in others] == before
    np.testing.assert_array_equal(model.layers[2].generator.normal([3]), draw)


def test_the_first_difference_is_named():
    model, _ = build()
    saved = kept(model)
    assert model_variables.difference(model, saved) is None
    saved["weight-1"] = saved["weight-1"].T
    assert model_variables.difference(model, saved).endswith(
        "is float32[5, 2], and there float32[2, 5]"
    )
    del saved["optimizer-0"]
    assert (
        "9 variables of the kind 'optimizer', and the model has 10"
        in model_variables.difference(model, saved)
    )


class Collecting(keras.optimizers.SGD):
    """Keeps what it calls by the name of the gradients that Keras accumulates."""

    def __init__(self, shape):
        super().__init__(0.1)
        self.shape = shape

    def build(self, variables):
        super().build(variables)
        self.own = self.add_variable(self.shape, name="my_gradient_accumulator")


def test_what_a_user_s_optimizer_keeps_is_no_sum_of_shares_by_its_name():
    def model_with(shape):
        with tfdp.DataParallelStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([keras.Input([5]), keras.layers.Dense(2)])
            model.compile(Collecting(shape), "mse")
            model.optimizer.build(model.trainable_variables)
        return model

    difference = model_variables.difference(model_with((4,)), kept(model_with((2, 4))))
    assert difference.endswith("my_gradient_accumulator' is float32[4], and there float32[2, 4]")


class Rank(OneProcess):
    """One of several processes, which send rank 0 what it asks for."""

    def __init__(self, board):
        super().__init__()
        self.rank, self.world_size, self._board = board.rank, board.world_size, board

    def bring_to_first(self, key, payload):
        return bring_to_first(self._board, key, payload)


def test_rank_0_has_one_whole_after_the_other_and_no_rank_holds_what_was_sent():
    rng = np.random.default_rng(0)
    wholes = {
        "weight-0": (rng.normal(size=(2, 3)), None),
        "optimizer-0": (rng.normal(size=(4, 5)), Sharding((4, 5), 1, (0, 2, 2, 5))),
        "optimizer-1": (rng.normal(size=(6,)).astype("float32"), Sharding((6,), 0, (0, 0, 6, 6))),
        "metric-0": (np.arange(3), Sharding((3,), 0, (0, 1, 2, 3))),
    }
    left = []

    def act(board):
        rank = board.rank
        kept = {
            name: Kept(whole if cut is None else whole[cut.index(rank)], cut)
            for name, (whole, cut) in wholes.items()
            if rank == 0 or cut is not None
        }
        found = {}
        for name, array in model_variables.wholes(Rank(board), "a test", kept):
            found[name] = array
            left.append(len(kept))
        assert not kept
        return found

    with meeting.boards(3) as boards:
        first, *others = meeting.on_all(*(lambda b=b: act(b) for b in boards))
    assert others == [{}, {}]
    assert left == [3, 2, 1, 0]
    assert list(first) == list(wholes)
    for name, (whole, _) in wholes.items():
        assert first[name].dtype == whole.dtype
        np.testing.assert_array_equal(first[name], whole)
