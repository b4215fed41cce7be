"""`benchmarks activations`: each way to train is measured in processes of its own."""

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from benchmarks import activations


@pytest.mark.multiprocess
@pytest.mark.exhaustive(
    "benchmarks/test_checkpoint_cost.py::test_one_checkpoint_is_timed_among_the_steps_of_a_fit"
)
def test_each_way_has_a_row(monkeypatch):
    ways = dict([*activations.WAYS.items()][:: len(activations.WAYS) - 1])  # the first and the last
    monkeypatch.setattr(activations, "WAYS", ways)
    console = Console(file=io.StringIO(), width=160)
    options = activations.ActivationsOptions(models=("small",), rounds=1, steps=2)
    assert activations.run(options, console) == 0
    lines = console.file.getvalue().splitlines()
    rows = [line.split("\u2502") for line in lines if line.startswith("\u2502")]
    assert [row[2].strip() for row in rows] == list(ways) and len(ways) == 2


@pytest.mark.slow
@pytest.mark.exhaustive("keras/test_rematerialization.py::test_it_trains_as_on_one_device")
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
