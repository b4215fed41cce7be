"""`benchmarks activations`: each way to train is measured in processes of its own."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.activations import WAYS


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.exhaustive(
    "benchmarks/test_checkpoint_cost.py::test_one_checkpoint_is_timed_among_the_steps_of_a_fit"
)
def test_each_way_has_a_row():
    words = ["activations", "--models", "small", "--rounds", "1", "--steps", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "160"},
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("\u2502") for line in done.stdout.splitlines() if line.startswith("\u2502")]
    assert [row[2].strip() for row in rows] == list(WAYS)


@pytest.mark.slow
@pytest.mark.exhaustive("keras_adapter/test_rematerialization.py::test_it_trains_as_on_one_device")
@pytest.mark.parametrize("model", ["small", "transformer"])
def test_a_model_has_the_same_loss_in_each_way(model):
    program = (
        "import json, keras, numpy as np\n"
        "from benchmarks import activations_worker as worker\n"
        "losses = []\n"
        "for again in (False, True):\n"
        "    keras.utils.set_random_seed(0)\n"
        f"    model, inputs = worker._MODELS[{model!r}](again)\n"
        "    model.compile('sgd', 'mse')\n"
        "    losses.append(model.evaluate(inputs[:4], np.zeros([4, 1]), verbose=0))\n"
        "print(json.dumps(losses))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    kept, again = json.loads(done.stdout.splitlines()[-1])
    assert kept == pytest.approx(again, rel=1e-5)
