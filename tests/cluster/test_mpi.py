"""MPI: what its launchers set, with mpi4py and without. Some tests start the real ones."""

import os
import pathlib
import shutil
import subprocess
import sys
import types

import pytest

from tfdp.cluster import mpi, port_of
from tfdp.cluster.mpi import launcher_pid
from tfdp.errors import ClusterError

BESIDE = str(pathlib.Path(sys.executable).parent)
MPIRUN = shutil.which("mpirun", path=os.pathsep.join([BESIDE, os.environ.get("PATH", "")]))


def open_mpi(rank, size=2, local_size=2):
    """Recorded: Open MPI 5.0.11, `mpirun -n 2 env`, without paths."""
    return {
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % local_size),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank % local_size),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_UNIVERSE_SIZE": "2",
        "OMPI_VERSION": "5.0.11",
        "OMPI_WORLD_LOCAL_SIZE": "2",
        "OMPI_WORLD_SIZE": "2",
        "PMIX_HOSTNAME": "vm",
        "PMIX_NAMESPACE": "prterun-vm-25528@1",
        "PMIX_RANK": str(rank),
        "PMIX_SERVER_URI41": "prterun-vm-25528@0.0;tcp4://127.0.0.1:52041",
        "PRTE_LAUNCHED": "1",
    }


def mpich(rank, size=2, local_size=2):
    """Recorded: MPICH 5.0.2 (Hydra), `mpirun -n 2 env`."""
    return {
        "GFORTRAN_UNBUFFERED_PRECONNECTED": "y",
        "HYDI_CONTROL_FD": "7",
        "MPI_LOCALNRANKS": str(local_size),
        "MPI_LOCALRANKID": str(rank % local_size),
        "PMI_FD": "9",
        "PMI_HOSTNAME": "vm",
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


def intel_mpi(rank, size=2, local_size=2):
    """Recorded: Intel MPI 2021.18.1, `mpirun -n 2 env`, without the machine's details."""
    return {
        "GFORTRAN_UNBUFFERED_PRECONNECTED": "y",
        "HYDRA_BSTRAP_LAUNCHER": "ssh",
        "HYDRA_BSTRAP_LOCALHOST": "vm",
        "HYDRA_LAUNCH_TYPE": "2",
        "I_MPI_HYDRA_UUID": "93740000-226a-41d8-c460-06003d855853",
        "I_MPI_MPIRUN": "mpirun",
        "I_MPI_PIN_INFO": str(rank),
        "MPI_LOCALNRANKS": str(local_size),
        "MPI_LOCALRANKID": str(rank % local_size),
        "PMI_FD": "9",
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


def srun_pmi2(rank):
    """`srun --mpi=pmi2 -N 2 -n 4`."""
    return {
        "PMI_FD": "14",
        "PMI_JOBID": "4711.0",
        "PMI_RANK": str(rank),
        "PMI_SIZE": "4",
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "node[01-02]",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_NTASKS": "4",
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(rank // 2),
        "SLURM_DISTRIBUTION": "block",
    }


def srun_pmix(rank):
    """`srun --mpi=pmix -N 2 -n 4`: PMIx tells the rank alone."""
    slurm = {name: value for name, value in srun_pmi2(rank).items() if "PMI" not in name}
    return slurm | {
        "PMIX_RANK": str(rank),
        "PMIX_NAMESPACE": "slurm.pmix.4711.0",
        "PMIX_HOSTNAME": f"node0{rank // 2 + 1}",
        "SLURM_PMIXP_ABORT_AGENT_PORT": "38459",
        "SLURM_PMIX_MAPPING_SERV": "(vector,(0,2,2))",
    }


class World:
    """mpi4py's world on one rank of a broadcast, which records what rank 0 sends."""

    def __init__(self, rank, size, received=None):
        self.rank, self.size, self.received, self.broadcasts = rank, size, received, 0

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def bcast(self, value, root):
        assert root == 0
        assert (value is None) == (self.rank != 0)
        self.broadcasts += 1
        return self.received if value is None else value


@pytest.fixture(autouse=True)
def mpi4py(monkeypatch):
    """Returns a function that installs an mpi4py with a given world; at first there is none."""

    def forget():
        mpi.broadcast_address.cache_clear()

    def install(world, vendor="MPICH"):
        module = types.SimpleNamespace(
            COMM_WORLD=world,
            get_vendor=lambda: (vendor, (1, 0, 0)),
            Is_initialized=lambda: bool(initialised),
            Init_thread=lambda: initialised.append(vendor),
        )
        package = types.SimpleNamespace(rc=types.SimpleNamespace(), MPI=module)
        initialised = []
        monkeypatch.setitem(sys.modules, "mpi4py", package)
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
        forget()
        return initialised

    monkeypatch.setitem(sys.modules, "mpi4py", None)  # importing it raises ImportError
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    forget()
    yield install
    forget()


every_launcher = pytest.mark.parametrize(
    ("variable", "environ"),
    [("OMPI_COMM_WORLD_RANK", open_mpi), ("PMI_RANK", mpich), ("PMI_RANK", intel_mpi)],
)


@every_launcher
def test_the_ranks_of_one_host_are_one_cluster(variable, environ):
    clusters = [mpi.detect(environ(rank)) for rank in range(2)]
    assert [cluster.rank for cluster in clusters] == [0, 1]
    assert {cluster.world_size for cluster in clusters} == {2}
    assert {cluster.source for cluster in clusters} == {f"MPI ({variable})"}
    assert {cluster.addresses for cluster in clusters} == {None}
    (coordinator,) = {cluster.coordinator for cluster in clusters}
    assert coordinator.startswith("127.0.0.1:")
    assert 20000 <= port_of(coordinator) < 60000


@every_launcher
def test_ranks_on_many_hosts_without_an_address_say_what_to_set(variable, environ):
    with pytest.raises(ClusterError) as error:
        mpi.detect(environ(3, size=4, local_size=2))
    for part in (
        "Rank 3: all 4 ranks",
        f"`{variable}`",
        "only 2 of them are on this host",
        "mpi4py cannot be imported",
        "`TFDP_COORDINATOR=host:port`",
        "pip install 'tfdp[mpi]'",
    ):
        assert part in str(error.value)


@every_launcher
def test_the_user_may_choose_the_coordinator(variable, environ):
    cluster = mpi.detect(environ(3, 4, 2) | {"TFDP_COORDINATOR": "node-1:2222"})
    assert (cluster.rank, cluster.world_size, cluster.coordinator) == (3, 4, "node-1:2222")


@every_launcher
def test_one_rank_is_one_process(variable, environ):
    cluster = mpi.detect(environ(0, size=1, local_size=1))
    assert (cluster.world_size, cluster.coordinator) == (1, None)
    assert cluster.source == f"MPI ({variable})"


@every_launcher
def test_variables_without_a_rank_have_leaked_and_are_no_cluster(variable, environ):
    leaked = environ(0)
    for name in (variable, "PMIX_RANK"):
        leaked.pop(name, None)
    assert mpi.detect(leaked) is None


def test_two_launches_have_two_ports():
    other = open_mpi(0) | {"PMIX_NAMESPACE": "prterun-vm-25529@1"}
    assert mpi.detect(open_mpi(0)).coordinator != mpi.detect(other).coordinator


@pytest.mark.parametrize("environ", [srun_pmi2, srun_pmix])
def test_ranks_that_srun_started_are_found_by_slurm_s_node_list(environ, mpi4py):
    mpi4py(World(1, 4))  # is not asked
    clusters = [mpi.detect(environ(rank)) for rank in range(4)]
    assert [cluster.rank for cluster in clusters] == [0, 1, 2, 3]
    assert {cluster.world_size for cluster in clusters} == {4}
    (coordinator,) = {cluster.coordinator for cluster in clusters}
    assert coordinator.startswith("node01:")


def test_a_rank_that_slurm_counts_otherwise_is_an_error():
    with pytest.raises(ClusterError) as error:
        mpi.detect(srun_pmi2(1) | {"SLURM_PROCID": "2"})
    for part in ("Rank 1", "`PMI_RANK`", "rank 1 of 4", "rank 2 of 4", "`TFDP_COORDINATOR="):
        assert part in str(error.value)


@every_launcher
def test_the_step_of_mpirun_s_daemons_is_not_the_ranks(variable, environ):
    # In a batch job `mpirun` starts one daemon per other node by `srun`; its ranks inherit this.
    daemon = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_NODELIST": "node02",
    }
    with pytest.raises(ClusterError, match=r"Rank 3: .*TFDP_COORDINATOR=host:port"):
        mpi.detect(environ(3, 4, 2) | daemon)


@pytest.mark.parametrize(
    ("environ", "vendor"), [(open_mpi, "Open MPI"), (mpich, "MPICH"), (intel_mpi, "Intel MPI")]
)
def test_rank_0_broadcasts_its_host_and_a_free_port_by_mpi4py(environ, vendor, mpi4py, monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "node-1")
    initialised = mpi4py(World(0, 4), vendor)
    coordinator = mpi.detect(environ(0, 4, 2)).coordinator
    assert coordinator.startswith("node-1:")
    assert initialised == [vendor]
    mpi4py(World(3, 4, coordinator), vendor)
    assert mpi.detect(environ(3, 4, 2)).coordinator == coordinator


def test_on_one_host_the_broadcast_address_needs_no_name_service(mpi4py):
    mpi4py(World(0, 2))
    assert mpi.detect(mpich(0)).coordinator.startswith("127.0.0.1:")


def test_detecting_twice_broadcasts_once(mpi4py):
    world = World(0, 2)
    mpi4py(world)
    assert mpi.detect(mpich(0)) == mpi.detect(mpich(0))
    assert world.broadcasts == 1


@pytest.mark.parametrize(("environ", "vendor"), [(open_mpi, "MPICH"), (mpich, "Open MPI")])
def test_an_mpi4py_of_another_mpi_is_not_initialised(environ, vendor, mpi4py):
    initialised = mpi4py(World(0, 1), vendor)
    assert mpi.detect(environ(0)).coordinator.startswith("127.0.0.1:")
    with pytest.raises(ClusterError) as error:
        mpi.detect(environ(1, 4, 2))
    assert "Rank 1: all 4 ranks" in str(error.value)
    assert f"mpi4py runs on {vendor}, which is not the launcher's MPI" in str(error.value)
    assert "`TFDP_COORDINATOR=host:port`" in str(error.value)
    assert initialised == []


def test_a_world_of_another_size_is_not_asked(mpi4py):
    world = World(0, 1)
    mpi4py(world)
    with pytest.raises(ClusterError, match="mpi4py says rank 0 of 1"):
        mpi.detect(mpich(1, 4, 2))
    assert world.broadcasts == 0


def test_pmix_alone_takes_the_number_of_ranks_from_mpi4py(mpi4py):
    mpi4py(World(1, 2, "vm:2222"))
    cluster = mpi.detect({"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-vm-1@1"})
    assert (cluster.rank, cluster.world_size, cluster.coordinator) == (1, 2, "vm:2222")
    assert cluster.source == "MPI (PMIX_RANK)"


def test_pmix_with_open_mpi_s_size_needs_no_mpi4py():
    environ = {"PMIX_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "TFDP_COORDINATOR": "a:1"}
    assert mpi.detect(environ).world_size == 2


def test_pmix_alone_without_mpi4py_says_what_is_missing():
    with pytest.raises(ClusterError) as error:
        mpi.detect({"PMIX_RANK": "1"})
    for part in ("Rank 1", "number of ranks", "`PMIX_RANK`=1", "mpi4py cannot", "tfdp[mpi]"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"PMI_RANK": "2"}, ["`PMI_RANK`", "below `PMI_SIZE`=2", "is 2"]),
        ({"PMI_RANK": "first"}, ["`PMI_RANK`", "whole number", "'first'", "unset it"]),
        ({"PMI_SIZE": "0"}, ["`PMI_SIZE`", "at least 1", "'0'"]),
        ({"PMI_SIZE": "two"}, ["`PMI_SIZE`", "whole number", "'two'"]),
        ({"PMI_SIZE": None}, ["`PMI_SIZE`", "missing"]),
        ({"MPI_LOCALNRANKS": "all"}, ["`MPI_LOCALNRANKS`", "whole number", "'all'"]),
        ({"TFDP_COORDINATOR": "1"}, ["Rank 1", "`TFDP_COORDINATOR`", "host:port", "'1'"]),
    ],
)
def test_what_is_wrong_in_the_variables_is_named_with_its_fix(changes, parts):
    environ = {name: value for name, value in (mpich(1) | changes).items() if value is not None}
    with pytest.raises(ClusterError) as error:
        mpi.detect(environ)
    for part in parts:
        assert part in str(error.value)


def test_the_launcher_is_found_behind_a_script_that_wraps_each_rank():
    code = "from tfdp.cluster.mpi import launcher_pid as pid; print(pid('SOME_RANK'))"
    script = f'"{sys.executable}" -c "{code}"; exit $?'
    environ = os.environ | {"SOME_RANK": "1"}
    words = ["sh", "-c", script]
    output = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
    assert int(output) == os.getpid()
    assert launcher_pid("SOME_RANK") == os.getppid()


@pytest.mark.multiprocess
@pytest.mark.skipif(MPIRUN is None, reason="needs an MPI")
def test_a_real_mpirun_starts_one_cluster(tmp_path):
    code = (  # into files: lines of two ranks on one stream may mix
        "import pathlib, sys; from tfdp.cluster import detect; c = detect(); "
        "file = pathlib.Path(sys.argv[1]) / str(c.rank); "
        "file.write_text(f'{c.world_size} {c.coordinator}')"
    )
    environ = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environ |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    words = [MPIRUN, "-n", "2", sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(words, env=environ, capture_output=True, check=True)
    texts = {file.name: file.read_text().split() for file in tmp_path.iterdir()}
    assert sorted(texts) == ["0", "1"]
    assert texts["0"] == texts["1"]
    assert texts["0"][0] == "2"


def test_only_the_names_of_mpich_s_memory_are_removed(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 rw-s 00000000 00:1a 7   /dev/shm/mpich_shm_0badc0de_tfdp\n"
        "7f02-7f03 rw-s 00000000 00:1a 7   /dev/shm/mpich_shm_0badc0df_tfdp (deleted)\n"
        f"7f04-7f05 r--p 00000000 00:1a 7   {maps}\n"
    )
    mpi.remove_mpich_names(maps)  # the first is gone already
    assert maps.exists()
    mpi.remove_mpich_names(tmp_path / "none")
