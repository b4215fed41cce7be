"""Ray Train's `TensorflowTrainer` trains through tfdp, unchanged, and starts it again."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import uuid

import pytest

pytest.importorskip("ray.train", reason="needs `pip install 'tfdp[ray]'`")
pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.exhaustive(
        "callbacks/test_checkpoint_callback.py::"
        "test_ranks_that_start_again_after_a_kill_end_like_a_training_that_was_not_disturbed"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]

EXAMPLES = pathlib.Path(__file__).parent.parent.parent.parent / "docs" / "clusters"
EPOCHS = 200


def workers(mark):
    """The processes of Ray that train, of this test's own Ray."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                b"RayTrainWorker" in (path / "cmdline").read_bytes()
                and mark.encode() in (path / "environ").read_bytes()
            ):
                found.append(int(path.name))
    return found


@pytest.mark.parametrize("options", [(), ("--xla",)])
def test_ray_starts_the_ranks_again_after_a_kill_and_they_go_on(options, tmp_path):
    mark = str(uuid.uuid4())
    environ = {**os.environ, "TFDP_TEST_MARK": mark, "RAY_USAGE_STATS_ENABLED": "0"}
    environ["JAX_NUM_CPU_DEVICES"] = "1"
    options = [*options, "--epochs", str(EPOCHS)]
    command = [sys.executable, "ray_train.py", *options, "--checkpoints", tmp_path / "kept"]
    with open(tmp_path / "output", "wb") as output:
        run = subprocess.Popen(
            list(map(str, command)),
            cwd=EXAMPLES,
            env=environ,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + 180
        while len(list((tmp_path / "kept").glob("*.checkpoint"))) < 2:
            assert time.monotonic() < deadline, (tmp_path / "output").read_text()
            assert run.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.01)
        os.kill(workers(mark)[-1], signal.SIGKILL)
        run.wait(240)
    finally:
        run.kill()
    said = (tmp_path / "output").read_text()
    assert run.returncode == 0, said
    assert "The training goes on from" in said
    (under_ray,) = set(re.findall(rf"{EPOCHS} epochs, loss ([0-9.]+)", said))
    alone = subprocess.run(
        [sys.executable, "train.py", *options],
        cwd=EXAMPLES,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    (expected,) = re.findall(r"loss ([0-9.]+)", alone.stdout)
    assert float(under_ray) == pytest.approx(float(expected), rel=1e-3, abs=2e-6)
