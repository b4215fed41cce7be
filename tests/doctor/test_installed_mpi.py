"""The line about MPI, with stand-ins for what is installed."""

import json
import sys

import pytest

from tfdp.doctor.installed_mpi import mpi_line


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Returns a function that installs an `mpiexec` and a Python whose mpi4py answers so."""

    def make(launcher, library, threads):
        python = tmp_path / "python"
        asks_threads = 'case "$2" in *Init_thread*)'
        answers = f"{asks_threads} {threads};; *) echo '{json.dumps(library)}';; esac"
        for path, body in ((tmp_path / "mpiexec", f"echo '{launcher}'"), (python, answers)):
            path.write_text(f'#!/bin/sh\n[ -z "$PMI_RANK" ] || exit 1\n{body}\n')
            path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        return {"PATH": "", "PMI_RANK": "1"}  # asked by a rank, which the answers must not be

    return make


def test_launcher_library_and_threads_are_named(installed, tmp_path):
    environ = installed("HYDRA", ["MPICH", "5.0.2", "4.1.2"], "echo MPI_THREAD_MULTIPLE")
    assert mpi_line(environ) == (
        f"MPI:      {tmp_path}/mpiexec of MPICH, mpi4py 4.1.2 on MPICH 5.0.2, MPI_THREAD_MULTIPLE"
    )


def test_an_mpi_that_cannot_be_initialised_is_named(installed):
    environ = installed("HYDRA", ["MPICH", "5.0.2", "4.1.2"], "exit 1")
    assert mpi_line(environ).endswith("MPICH 5.0.2, which cannot be initialised")


def test_what_does_not_fit_is_named_with_the_fix(installed):
    environ = installed("HYDRA", ["Open MPI", "5.0.11", "4.1.2"], "exit 1")
    line = mpi_line(environ)
    assert line.startswith("MPI:      not for `tfdp run --engine mpi`: mpi4py must run on the MPI")
    assert "Open MPI 5.0.11" in line
