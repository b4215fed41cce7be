"""Which engine moves the tensors: what the user asked for, and what the launcher left."""

import logging
import types

import pytest

import tfdp
from tfdp.cluster import mpi as mpi_launcher
from tfdp.communication.collectives import check_name, choose
from tfdp.errors import ClusterError

CPU = ["/job:worker/replica:0/task:0/device:CPU:0"]
GPU = ["/job:worker/replica:0/task:0/device:GPU:0"]
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2"}


@pytest.fixture
def mpi(monkeypatch):
    """Stands for mpi4py: a world of two processes, any of whose threads may call MPI."""
    world = types.SimpleNamespace(Get_size=lambda: 2)
    module = types.SimpleNamespace(COMM_WORLD=world, Query_thread=lambda: 3, THREAD_MULTIPLE=3)
    monkeypatch.setattr(mpi_launcher, "connect", lambda open_mpi: (module, ""))
    return module


def test_auto_is_mpi_where_its_launcher_started_cpus(mpi):
    choice = choose("auto", 0, 2, CPU, MPICH)
    assert (choice.name, choice.launcher.variable) == ("mpi", "PMI_RANK")
    assert choose("mpi", 0, 2, CPU, MPICH) == choice
    assert choose("tensorflow", 0, 2, CPU, MPICH).name == "tensorflow"


@pytest.mark.parametrize(
    ("world_size", "devices", "environ", "why"),
    [
        (1, CPU, {}, r"but the process is alone\. Start all ranks .*leave `engine` out\.$"),
        (2, CPU, {}, r"but no launcher of MPI started this process\. Start .*`engine` out\.$"),
        (2, GPU, MPICH, r"but the devices are GPUs, and MPI moves host memory alone.*NCCL\.$"),
        (3, CPU, MPICH, r"PMI_RANK tells of 2 processes, but the cluster has 3\. Start"),
    ],
)
def test_mpi_is_refused_with_the_reason_where_auto_is_tensorflow(
    mpi, world_size, devices, environ, why
):
    with pytest.raises(ClusterError, match=r'^Rank 1: engine="mpi" needs MPI .*' + why):
        choose("mpi", 1, world_size, devices, environ)
    assert choose("auto", 1, world_size, devices, environ).name == "tensorflow"


def test_an_mpi_without_threads_or_with_other_processes_is_refused(mpi):
    mpi.COMM_WORLD.Get_size = lambda: 4
    with pytest.raises(ClusterError, match="MPI has 4 processes, but the cluster has 2"):
        choose("mpi", 0, 2, CPU, MPICH)
    mpi.Query_thread = lambda: 2
    with pytest.raises(ClusterError, match=r"without MPI_THREAD_MULTIPLE.*thread_level"):
        choose("mpi", 0, 2, CPU, MPICH)


def test_without_mpi4py_auto_says_once_what_is_slower(monkeypatch, caplog):
    reason = "mpi4py runs on Open MPI, which is not the launcher's MPI"
    monkeypatch.setattr(mpi_launcher, "connect", lambda open_mpi: (None, reason))
    with caplog.at_level(logging.WARNING, logger="tfdp"):
        assert choose("auto", 0, 2, CPU, MPICH).name == "tensorflow"
        assert choose("auto", 1, 2, CPU, MPICH).name == "tensorflow"
    (record,) = caplog.records
    assert f"{reason}. Install mpi4py" in record.getMessage()


@pytest.mark.parametrize("name", ["gloo", None, 3])
def test_other_engines_are_refused(name):
    with pytest.raises(ValueError, match=r"`engine` must be one of 'auto', 'tensorflow', 'mpi'"):
        check_name(name)
    with pytest.raises(ValueError, match="engine"):
        tfdp.DataParallelStrategy(engine=name)
