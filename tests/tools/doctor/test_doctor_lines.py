"""The lines that the doctor prints."""

import json
import sys

import pytest

from tfdp.cluster import Cluster
from tfdp.tools.doctor import DoctorOptions
from tfdp.tools.doctor.doctor_lines import cluster_lines, mpi_line, rank_lines
from tfdp.tools.doctor.rank_facts import Measurement, RankFacts

RANKS = [RankFacts(rank=0, host="a", pid=7), RankFacts(rank=1, host="node-1", pid=12345)]


def test_each_rank_has_a_line_and_columns_are_aligned():
    measured = [Measurement(0.001, 0.002, 0.1, right=True), Measurement(0.001, 0.002, 0.2, False)]
    head, first, second, *caption = rank_lines(RANKS, measured, megabytes=16)
    assert len(head) == len(first) == len(second)
    assert first.split()[-3:] == ["100.00", "0.16", "right"]  # 2(n-1)/n x 16 MB in 0.1 s
    assert second.split()[-3:] == ["200.00", "0.08", "WRONG"]
    assert head.split()[-5:] == ["16", "MB", "ms", "GB/s", "result"]
    assert "2 replicas" in " ".join(caption)


def test_the_lines_fit_80_columns_behind_the_launcher_s_prefix():
    measured = [Measurement(0.0123, 0.0456, 1.2, right=True)] * 2
    lines = rank_lines(RANKS, measured, DoctorOptions().megabytes)
    assert max(map(len, lines)) + len("[0] ") <= 80


def test_ranks_whose_checks_did_not_end_are_shown_without_numbers():
    _, first, second, *_ = rank_lines(RANKS, [None, None], megabytes=16)
    assert first.endswith("failed")
    assert second.split()[1:3] == ["node-1", "12345"]


def test_one_replica_has_nothing_to_reduce():
    *_, line, caption = rank_lines([RankFacts()], [Measurement()], megabytes=16)
    assert "nothing to reduce" in caption
    assert "None" not in line


def test_a_cluster_whose_ranks_choose_their_ports_says_so():
    lines = cluster_lines(Cluster(0, 3, "a:2000", source="Slurm (SLURM_PROCID)"))
    assert "3 processes, this is rank 0; read from Slurm (SLURM_PROCID)" in lines[0]
    assert "rank 0 at a:2000, the others at ports that they choose" in lines[1]


def test_the_gpus_of_each_rank_are_shown():
    ranks = [RankFacts(rank=0, own_gpus=["0", "1"]), RankFacts(rank=1, own_gpus=["6", "7"])]
    lines = rank_lines(ranks, [None, None], megabytes=16)
    assert "(GPUs as CUDA_VISIBLE_DEVICES names them: rank 0 has 0,1; rank 1 has 6,7)" in lines


def test_kinds_of_gpus_and_nccls_version_are_said():
    ranks = [RankFacts(rank=0, gpu_kinds=["B"], nccl="2.27.3"), RankFacts(rank=1, gpu_kinds=["A"])]
    assert "(kinds of GPUs: A, B; NCCL 2.27.3, unknown)" in rank_lines(ranks, [None] * 2, 16)
    assert not any("GPUs" in line for line in rank_lines(RANKS, [None, None], megabytes=16))


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
