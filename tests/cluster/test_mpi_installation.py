"""Which MPI is installed: its launcher, the library of mpi4py, and whether they fit."""

import json
import sys

import pytest

from tfdp.cluster import mpi4py_world
from tfdp.cluster.mpi_installation import (
    Library,
    Mpiexec,
    check_fit,
    find_library,
    find_mpiexec,
)
from tfdp.errors import ClusterError


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Returns a function that makes a program in a folder, beside which Python then is."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    (tmp_path / "bin").mkdir()

    def make(body, folder="bin", name="mpiexec"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    return make


@pytest.mark.parametrize(
    ("said", "vendor"),
    [
        ("HYDRA build details:\n    Version:   5.0.2", "MPICH"),
        ("mpiexec (Open MPI) 5.0.11", "Open MPI"),
        ("mpiexec (OpenRTE) 4.1.2", "Open MPI"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626", "Intel MPI"),
    ],
)
def test_a_launcher_is_known_by_its_version(program, said, vendor):
    path = program(f"echo '{said}'")
    assert find_mpiexec({"PATH": ""}) == Mpiexec(str(path), vendor)


def test_the_launcher_beside_python_goes_before_the_path(program):
    elsewhere = program("echo '(Open MPI)'", "elsewhere")
    environ = {"PATH": str(elsewhere.parent)}
    assert find_mpiexec(environ) == Mpiexec(str(elsewhere), "Open MPI")
    beside = program("echo HYDRA")
    assert find_mpiexec(environ) == Mpiexec(str(beside), "MPICH")


def test_without_a_launcher_the_error_says_what_to_install(program, tmp_path):
    with pytest.raises(ClusterError) as error:
        find_mpiexec({"PATH": str(tmp_path)})
    for part in ("`mpiexec` must be", f"{tmp_path}/bin/mpiexec", "pip install mpich", "module"):
        assert part in str(error.value)


def test_a_launcher_of_another_kind_is_refused_with_what_it_says(program):
    path = program("echo mpiexec of PBS")
    with pytest.raises(ClusterError) as error:
        find_mpiexec({"PATH": ""})
    for part in ("must be that of MPICH, Intel MPI or Open MPI", str(path), "mpiexec of PBS"):
        assert part in str(error.value)


def test_the_library_is_that_of_the_ranks_python(program):
    python = program(f"echo noise; echo '{json.dumps(['MPICH', '5.0.2', '4.1.2'])}'", name="py")
    assert find_library(str(python), {}) == Library("MPICH", "5.0.2", "4.1.2")


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("ModuleNotFoundError: No module named 'mpi4py'", "do `pip install 'tfdp[mpi]'`"),
        ("RuntimeError: cannot load MPI library", "do `pip install mpich`"),
    ],
)
def test_a_python_without_mpi_is_named_with_its_error_and_the_fix(program, said, fix):
    python = program(f'echo "Traceback" >&2; echo "{said}" >&2; exit 1', name="py")
    with pytest.raises(ClusterError) as error:
        find_library(str(python), {})
    for part in ("mpi4py must be importable", str(python), said, fix):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("launcher", "library", "fits"),
    [
        ("MPICH", "MPICH", True),
        ("MPICH", "Intel MPI", True),  # one binary interface
        ("Intel MPI", "MPICH", True),
        ("Open MPI", "Open MPI", True),
        ("MPICH", "Open MPI", False),
        ("Open MPI", "MPICH", False),
    ],
)
def test_a_library_of_another_mpi_is_refused(launcher, library, fits):
    pair = Mpiexec("/opt/mpiexec", launcher), Library(library, "1.2", "4.1.2")
    if fits:
        check_fit(*pair)
        return
    with pytest.raises(ClusterError) as error:
        check_fit(*pair)
    for part in (f"received {library} 1.2 and /opt/mpiexec of {launcher}", "--no-binary mpi4py"):
        assert part in str(error.value)


def test_only_the_names_of_mpich_s_memory_are_removed(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 rw-s 00000000 00:1a 7   /dev/shm/mpich_shm_0badc0de_tfdp\n"
        "7f02-7f03 rw-s 00000000 00:1a 7   /dev/shm/mpich_shm_0badc0df_tfdp (deleted)\n"
        f"7f04-7f05 r--p 00000000 00:1a 7   {maps}\n"
    )
    mpi4py_world.remove_mpich_names(maps)  # the first is gone already
    assert maps.exists()
    mpi4py_world.remove_mpich_names(tmp_path / "none")
