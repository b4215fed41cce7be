"""The GPUs that `tfdp run` gives to each rank, with stand-ins for the host's."""

import pytest

from tfdp.base import gpus, machine
from tfdp.cluster.launch.places import gpu_shares
from tfdp.cluster.launch.run_options import RunOptions
from tfdp.tools import cli


@pytest.fixture
def host(monkeypatch):
    """Returns a function that gives the host so many GPUs, or TensorFlow the build for CPUs."""

    def make(count, for_cpus=False):
        monkeypatch.setattr(gpus, "_listed", lambda environ: [str(i) for i in range(count)])
        monkeypatch.setattr(machine, "tensorflow_is_for_cpus", lambda: for_cpus)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


def shares(processes, each=None, **environ):
    options = RunOptions(processes=processes, command=("x.py",), gpus_per_process=each)
    return gpu_shares(options, environ)


@pytest.mark.parametrize(
    ("processes", "each", "environ", "given"),
    [
        (8, None, {}, list("01234567")),
        (2, None, {}, ["0,1,2,3", "4,5,6,7"]),
        (3, None, {}, ["0,1", "2,3", "4,5"]),
        (3, 1, {}, ["0", "1", "2"]),
        (2, None, {"CUDA_VISIBLE_DEVICES": "5,3"}, ["5", "3"]),
        (2, 1, {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b,7"}, ["GPU-a", "GPU-b"]),
        (1, None, {}, [None]),
        (1, 2, {}, ["0,1"]),
        (2, None, {"CUDA_VISIBLE_DEVICES": "-1"}, [None, None]),
    ],
)
def test_every_rank_gets_gpus_of_its_own(host, processes, each, environ, given):
    host(8)
    assert shares(processes, each, **environ) == given


def test_without_gpus_or_where_tensorflow_uses_none_nothing_changes(host):
    host(0)
    assert shares(4) == [None] * 4
    host(2, for_cpus=True)
    assert shares(4) == [None] * 4


def test_gpus_are_shared_for_jax_where_tensorflow_uses_none(host, monkeypatch):
    host(4, for_cpus=True)
    monkeypatch.setattr(machine, "_installed", lambda name: "0.10" * (name == "jax-cuda13-plugin"))
    assert shares(2) == ["0,1", "2,3"]
    assert shares(2, JAX_PLATFORMS="cpu") == [None] * 2


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["-n", "4"], ["received 4 and 2 GPUs", "do `-n 2`", "CUDA_VISIBLE_DEVICES=-1 tfdp run"]),
        (["-n", "2", "--gpus-per-process", "2"], ["2 times 2 and 2 GPUs", "process 1`"]),
        (["-n", "3", "--gpus-per-process", "1"], ["1 times 3 and 2 GPUs", "do fewer ranks"]),
    ],
)
def test_more_ranks_than_gpus_are_refused_before_anything_starts(host, capsys, words, parts):
    host(2)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["run", *words, "true"])
    assert exit_.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    for part in parts:
        assert part in said


def test_a_host_without_gpus_cannot_give_some(host, capsys):
    host(0)
    with pytest.raises(SystemExit):
        cli.main(["run", "-n", "1", "--gpus-per-process", "1", "true"])
    assert "1 times 1 and 0 GPUs" in capsys.readouterr().err


def test_the_ranks_are_started_with_their_gpus(host, capsys):
    host(4)
    assert cli.main(["run", "-n", "2", "--dry-run", "true"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert ["CUDA_VISIBLE_DEVICES=0,1 " in said[0], "CUDA_VISIBLE_DEVICES=2,3 " in said[1]] == [
        True,
        True,
    ]
