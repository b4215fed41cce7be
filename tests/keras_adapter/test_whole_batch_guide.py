"""The guide's programs train as on one device."""

import pathlib
import re

import harness
import numpy as np
import pytest
import tiers

GUIDE = pathlib.Path(__file__).parents[2] / "docs/whole_batch/README.md"
ROWS = np.random.default_rng(1).normal(size=(2, 11, 8)).astype("float32")
SECOND = {"triplets": np.arange(11) % 3, "simclr": ROWS[1]}


@pytest.mark.parametrize("program", SECOND)
@pytest.mark.parametrize("replicas", tiers.first_of(2, 3), ids="{}-replicas".format)
def test_a_program_trains_as_on_one_device(program, trains_as_one_device):
    *programs, _ = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names = {}
    exec("".join(programs), names)

    def use(model):
        return harness.fit_arrays(model, ROWS[0], SECOND[program], batch_size=7, epochs=2)

    trains_as_one_device(names[program], use)


@pytest.mark.exhaustive("test_a_program_trains_as_on_one_device")
def test_verify_finds_no_difference():
    exec("".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)), {})
