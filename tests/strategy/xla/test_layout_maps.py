"""Layout maps: which weight has which layout, and what is refused."""

import json

import keras
import numpy as np
import pytest

pytest.importorskip("jax")

import jax

import tfdp
from tfdp.strategy.xla.layout_maps import LayoutMap, checked_mesh

MESH = {"batch": 4, "model": 2}


def on_mesh(layout_map, mesh=None, **options):
    return tfdp.XLAStrategy(jax.devices()[:8], mesh=mesh or MESH, layout_map=layout_map, **options)


def compiled(strategy, units=6):
    """A step of a small network, compiled."""
    with strategy.scope():
        model = keras.Sequential([keras.Input([8]), keras.layers.Dense(units, name="up")])
        model.add(keras.layers.Dense(4, name="down"))
        model.compile("adam", "mse")
    return model, strategy.compile_ahead(model, (np.ones([8, 8]), np.ones([8, 4])))


def test_a_path_that_is_written_out_comes_first_and_then_the_first_pattern():
    found = LayoutMap(
        {"k": (None, "model"), "kernel": ("model", None), "mlp/up/kernel": (None, None)}, MESH
    )
    assert found.axes_of("mlp/up/kernel", (4, 4)) == (None, None)
    assert found.axes_of("mlp/down/kernel", (4, 4)) == (None, "model")
    assert found.axes_of("mlp/down/bias", (4,)) is None


def test_what_is_no_weight_and_does_not_fit_is_left():
    found = LayoutMap({"kernel": (None, "model")}, MESH)
    assert found.axes_of("adafactor/kernel_rows", (4,), is_weight=False) is None
    assert found.axes_of("adafactor/kernel_sums", (4, 3), is_weight=False) is None
    assert found.axes_of("adafactor/kernel_sums", (4, 4), is_weight=False) == (None, "model")


def test_layouts_of_keras_are_taken():
    mesh = keras.distribution.DeviceMesh((4, 2), ["batch", "model"], devices=np.arange(8))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*up.*kernel"] = (None, "model")
    layout_map[".*up.*bias"] = keras.distribution.TensorLayout(["model"], mesh)
    strategy = on_mesh(layout_map)
    model, _ = compiled(strategy)
    layouts = strategy.extended.layouts
    specs = {each.path.split("/", 1)[1]: layouts.of_variable(each.value) for each in model.weights}
    assert {path: tuple(each.spec) for path, each in specs.items()} == {
        "up/kernel": (None, "model"),
        "up/bias": ("model",),
        "down/kernel": (),
        "down/bias": (),
    }
    assert strategy.describe()["layout_map"] == {
        ".*up.*kernel": [None, "model"],
        ".*up.*bias": ["model"],
    }


def test_a_path_is_looked_up_in_a_mapping_of_keras_as_keras_does():
    mesh = keras.distribution.DeviceMesh((4, 2), ["batch", "model"], devices=np.arange(8))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["up/kernel"], layout_map[".*down.*"] = (None, "model"), ("model", None)
    found = LayoutMap(layout_map, MESH)
    for path in "up/kernel", "mlp/up/kernel", "mlp/down/kernel", "mlp/norm/gamma":
        expected = layout_map[path]
        axes = found.axes_of(path, (4, 4))
        assert axes == (None if expected is None else tuple(expected.axes))
    other = keras.distribution.DeviceMesh((2, 4), ["batch", "model"], devices=np.arange(8))
    with pytest.raises(ValueError, match=r"LayoutMap` must be the strategy's, .*'batch': 2"):
        on_mesh(keras.distribution.LayoutMap(other))


def test_a_pattern_that_fits_nothing_is_refused():
    strategy = on_mesh({"moving_mean": ("model",)})
    with strategy.scope():
        model = keras.Sequential([keras.Input([5]), keras.layers.BatchNormalization()])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"has \('model',\) for '.*moving_mean' of shape \(5,"):
        strategy.compile_ahead(model, (np.ones([8, 5]), np.ones([8, 5])))


def test_the_order_of_patterns_and_of_axes_is_compared():
    """The first pattern that is found wins, and the mesh's order places devices."""
    patterns = {"kernel": (None, None), "up/kernel": (None, "model")}
    columns = {"batch": 2, "expert": 2, "model": 2}
    given = [(patterns, columns), (dict(reversed(patterns.items())), columns)]
    given += [(patterns, dict(reversed(columns.items()))), ({}, columns), (patterns, columns)]
    *others, again = (on_mesh(layouts, mesh).extended for layouts, mesh in given)
    kept = [json.loads(json.dumps(each.order_of_sums())) for each in others]
    assert again.take_order_of_sums(kept[0]) == []
    for each, name in zip(kept[1:], ("layout_map", "devices", "layout_map"), strict=True):
        (first, *_) = again.take_order_of_sums(each)
        assert first.startswith(f"{name} w")


def test_derived_layouts_are_compared_by_their_rule_before_and_after_they_are_known():
    strategy, new = (on_mesh("auto") for _ in range(2))
    assert new.describe()["layout_map"] == "auto"
    compiled(strategy, units=2**14)
    assert [None, "model"] in strategy.describe()["layout_map"].values()
    assert new.extended.take_order_of_sums(strategy.extended.order_of_sums()) == []
    assert new.extended.take_order_of_sums(on_mesh({}).extended.order_of_sums())


def test_layouts_along_the_batch_alone_are_described():
    strategy = on_mesh({"kernel": ("batch", None)}, {"batch": 8})
    assert strategy.describe()["layout_map"] == {"kernel": ["batch", None]}


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ({"batch": 4, "model": 4}, r"places as there are devices, 8, .*'batch': 2, 'model': 4}\.$"),
        ({"batch": 4, "model": 3}, r"places as there are devices, 8, .*'batch': 4, 'model': 2}\.$"),
        ({"data": 4, "model": 2}, r'an axis "batch", .*received {\'data\': 4, .*Use mesh={\'batch'),
        ({}, r'an axis "batch", .*received {}'),
        ({"batch": 8, "model": 0}, r"positive integers, .*'model': 0}"),
        ({"batch": -4, "model": -2}, r"positive integers, .*'batch': -4"),
        ({"batch": 8.0}, r"positive integers, .*8\.0"),
        ({"batch": 8, "model": True}, r"positive integers, .*True"),
        ({"batch": 8, "model": None}, r"positive integers, .*None"),
        ({"batch": 4, "a model": 2}, r"strings that are Python identifiers, .*'a model'"),
        ({"batch": 4, 1: 2}, r"strings that are Python identifiers, .*1: 2"),
        ((4, 2), r"a dict, .*received \(4, 2\)\. Use mesh={'batch': 4, 'model': 2}"),
        ([("batch", 4), ("model", 2)], r"a dict, .*received \[\('batch', 4\)"),
    ],
)
def test_a_mesh_must_cover_the_devices(mesh, said):
    with pytest.raises(ValueError, match=said):
        checked_mesh(mesh, 8)


def test_sizes_may_be_numbers_of_numpy():
    mesh = checked_mesh({"batch": np.int64(4), "model": np.int32(2)}, 8)
    assert mesh == MESH and {type(size) for size in mesh.values()} == {int}


@pytest.mark.parametrize(
    ("layout_map", "said"),
    [
        ({"kernel": (None, "modell")}, r"'kernel' has 'modell'"),
        ({"kernel": ("model", "model")}, r"'kernel' has 'model' twice"),
        ({"kernel": (None, ("batch", "model"))}, r"'kernel' has \('batch', 'model'\)"),
        ({"kernel": "model"}, r"must be a tuple, but 'kernel' has 'model'"),
        ({"kernel(": (None, "model")}, r"regular expressions, but received 'kernel\('"),
        ({3: (None, "model")}, r"regular expressions, but received 3 .*int, and not a string"),
        ({b"kernel": (None, "model")}, r"regular expressions, but received b'kernel'"),
    ],
)
def test_a_layout_must_fit_the_mesh(layout_map, said):
    with pytest.raises(ValueError, match=said):
        on_mesh(layout_map)


@pytest.mark.parametrize("layout_map", ["columns", [("kernel", (None, "model"))]])
def test_a_layout_map_must_be_a_mapping(layout_map):
    with pytest.raises(ValueError, match=r"must be \"auto\" or a mapping from patterns"):
        on_mesh(layout_map)


@pytest.mark.parametrize("layout_map", ["auto", {"kernel": (None, "batch")}])
def test_a_layout_map_needs_a_mesh(layout_map):
    with pytest.raises(ValueError, match=r"come with the mesh .* received mesh=None"):
        tfdp.XLAStrategy(layout_map=layout_map)


@pytest.mark.parametrize(
    ("layout_map", "said"),
    [
        ({"up/kernel": (None, "model")}, r"'up/kernel' shards axis 1 of 'sequential.*/up/kernel'"),
        ({"up": (None, None)}, r"'up' has \(None, None\) for 'sequential.*/up/bias'"),
        ({"upp": (None, None)}, r"'upp' is found in no path of .*/up/kernel"),
        (
            {"kernel": (None, None), "up/kernel": (None, None)},
            r"'kernel' comes before 'up/kernel', and is found in 'sequential.*/up/kernel' and",
        ),
    ],
)
def test_a_layout_must_fit_the_weights(layout_map, said):
    with pytest.raises(ValueError, match=said):
        compiled(on_mesh(layout_map), units=7)


def test_data_parallel_strategy_names_the_one_that_has_meshes():
    for option in ({"mesh": MESH}, {"layout_map": {}}):
        with pytest.raises(TypeError, match=r"tfdp\.XLAStrategy\(mesh="):
            tfdp.DataParallelStrategy(["CPU:0", "CPU:1"], **option)
