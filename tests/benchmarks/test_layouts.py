"""`benchmarks layouts`, with layers of Keras in place of KerasHub's backbones."""

import importlib.util
import json

import keras
import pytest
from keras import layers

from benchmarks import layouts, layouts_worker
from benchmarks.__main__ import main

MAP = {"full": 2**22, "state": 2**20, "memory": 100, "sent": 100}


def test_an_environment_without_keras_hub_is_refused_with_the_command_that_installs_it(
    monkeypatch, capsys
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "keras_hub" else find(name)
    )
    with pytest.raises(SystemExit) as exit_:
        main(["layouts"])
    assert exit_.value.code == 2
    assert "without it; do `pip install keras-hub`." in capsys.readouterr().err


@pytest.mark.parametrize("mesh", ["8", "2x8", "axb", "0x8", "2x2x2", "1x8x"])
def test_a_mesh_of_another_size_is_refused(mesh, capsys):
    with pytest.raises(SystemExit):
        main(["layouts", "--meshes", mesh])
    said = capsys.readouterr().err
    assert f"received {mesh!r}. Use 2x4." in said


def test_the_exit_code_says_that_a_device_needs_or_sends_more_than_with_the_map(
    monkeypatch, capsys
):
    given = []

    def worker(found):
        def run(module, arguments, timeout_seconds):
            given.append((module, arguments))
            return {"1x8": {"map": MAP, "auto": found}}

        monkeypatch.setattr(layouts, "run_for_json", run)

    options = layouts.LayoutsOptions(backbones=("GemmaBackbone",), meshes=("1x8", "2x4"), rows=4)
    for found, code in (
        ({**MAP, "memory": 110, "sent": 110}, 0),
        ({**MAP, "memory": 111}, 1),
        ({**MAP, "sent": 111}, 1),
        ({"refused": "it has no layout"}, 1),
    ):
        worker(found)
        assert layouts.run(options) == code
        said = capsys.readouterr()
        assert said.out.splitlines()[-1].startswith("| Gemma | 1 x 8 |")
        is_refused = said.err == "GemmaBackbone, 1x8, auto: it has no layout\n"
        assert is_refused == ("refused" in found)
    assert given[0] == (
        "benchmarks.layouts_worker",
        ["GemmaBackbone", "1x8,2x4", "8", "4", "64"],
    )


def test_a_backbone_that_failed_is_said_and_the_others_are_shown(monkeypatch, capsys):
    failure = layouts.ChildFailure("python -m worker", "exited with status 1", "no such backbone")
    ends = {"NoBackbone": failure, "GemmaBackbone": {"2x4": {"auto": {**MAP, "layouts": ["up"]}}}}
    monkeypatch.setattr(layouts, "run_for_json", lambda _, arguments, __: ends[arguments[0]])
    options = layouts.LayoutsOptions(backbones=tuple(ends), explain=True)
    assert layouts.run(options) == 1
    said = capsys.readouterr()
    assert "NoBackbone: `python -m worker` exited with status 1\nno such backbone" in said.err
    row = "| Gemma | 2 x 4 | 4.0 | | 1.0 | | 0.0 | | | 0.0 | |"
    assert said.out.splitlines()[-2:] == [row, "up"]


class Table(layers.Embedding):
    """A table that gives words for what it gave of words, as KerasHub's do."""

    def call(self, inputs, reverse=False):
        if reverse:
            return keras.ops.matmul(inputs, keras.ops.transpose(self.embeddings))
        return super().call(inputs)

    def compute_output_spec(self, inputs, reverse=False):
        size = self.input_dim if reverse else self.output_dim
        return keras.KerasTensor([*inputs.shape[:2], size])


class Backbone(keras.Model):
    """One of KerasHub's, as it were: given sizes by their names, it has a table and a stream."""

    def __init__(self, vocabulary_size, hidden_dim, dropout=0.0, num_layers=1):
        given = {
            name: keras.Input([None], dtype="int32", name=name)
            for name in ("token_ids", "padding_mask")
        }
        table = Table(vocabulary_size, hidden_dim, name="words")
        x = table(given["token_ids"]) * keras.ops.cast(given["padding_mask"], "float32")[..., None]
        for place in range(num_layers):
            x = x + layers.Dense(hidden_dim, name=f"down{place}")(
                layers.Dense(4 * hidden_dim, "relu", name=f"up{place}")(x)
            )
        super().__init__(given, {"sequence_output": x})
        self.token_embedding = table

    @staticmethod
    def get_layout_map(device_mesh):
        layout_map = keras.distribution.LayoutMap(device_mesh)
        layout_map["up./kernel"] = ("batch", "model")
        layout_map["gate./kernel"] = ("batch", "model")
        return layout_map


def test_patterns_of_layers_that_a_small_backbone_lacks_are_left_out():
    pytest.importorskip("jax")
    found = layouts_worker.layout_map_of(Backbone, {"batch": 2, "model": 4}, 8)
    assert {path: tuple(layout.axes) for path, layout in found.items()} == {
        "up0/kernel": ("batch", "model"),
        "up1/kernel": ("batch", "model"),
    }


@pytest.mark.slow
def test_the_facts_of_a_step_are_those_of_its_layouts():
    pytest.importorskip("jax")
    columns = {"up./kernel": (None, "model"), "words": ("model", None)}
    found = {
        how: layouts_worker.facts(Backbone, {"batch": 1, "model": 8}, layout_map, 8, [8, 16])
        for how, layout_map in (("map", columns), ("auto", "auto"))
    }
    json.dumps(found)
    words, up = 4 * 4096 * 256, 4 * 256 * 1024
    small = 4 * (2 * (256 + 1024))
    counters = 8 + 4  # the optimizer's steps and its rate
    full = 3 * (words + 4 * up + small) + counters
    assert found["map"]["full"] == found["auto"]["full"] == full
    # Adam's moments are as their weight. By the map biases and the second layers are on all.
    assert found["map"]["state"] == 3 * ((words + 2 * up) // 8 + 2 * up + small) + counters
    of_up = 4 * 2 * 1024
    derived = 3 * ((words + 4 * up + of_up) // 8 + small - of_up) + counters
    assert found["auto"]["state"] == derived
    assert found["auto"]["memory"] > found["auto"]["state"]
    assert found["auto"]["sent"] > 0 and len(found["auto"]["layouts"]) == 9
