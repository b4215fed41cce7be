"""A process that starts again takes its programs from JAX's compilation cache, where one is set."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax")

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "cached.py"


@pytest.mark.multiprocess
def test_the_second_process_compiles_nothing(tmp_path):
    def found(folder):
        # The time below which a program is not kept is JAX's own option.
        options = {
            "JAX_COMPILATION_CACHE_DIR": str(folder),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        run = subprocess.run(
            [sys.executable, SCRIPT],
            capture_output=True,
            text=True,
            env=os.environ | options,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        return json.loads(run.stdout.splitlines()[-1])

    first, second = found(tmp_path), found(tmp_path)
    assert first["misses"] > 0
    assert second["misses"] == 0 and second["hits"] == first["misses"] + first["hits"]
    assert set(second["seconds"]) == {"trace", "lower", "compile"}
    np.testing.assert_array_equal(second["weights"], first["weights"])
