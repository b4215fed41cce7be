"""The lines that the doctor prints."""

from tfdp.cluster import Cluster
from tfdp.doctor.doctor_options import DoctorOptions
from tfdp.doctor.facts import Facts, Measurement
from tfdp.doctor.report import cluster_lines, rank_lines

RANKS = [Facts(rank=0, host="a", pid=7), Facts(rank=1, host="node-1", pid=12345)]


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
    *_, line, caption = rank_lines([Facts()], [Measurement()], megabytes=16)
    assert "nothing to reduce" in caption
    assert "None" not in line


def test_a_cluster_whose_ranks_choose_their_ports_says_so():
    lines = cluster_lines(Cluster(0, 3, "a:2000", source="Slurm (SLURM_PROCID)"))
    assert "3 processes, this is rank 0; read from Slurm (SLURM_PROCID)" in lines[0]
    assert "rank 0 at a:2000, the others at ports that they choose" in lines[1]


def test_the_gpus_of_each_rank_are_shown():
    ranks = [Facts(rank=0, own_gpus=["0", "1"]), Facts(rank=1, own_gpus=["6", "7"])]
    lines = rank_lines(ranks, [None, None], megabytes=16)
    assert "(GPUs as CUDA_VISIBLE_DEVICES names them: rank 0 has 0,1; rank 1 has 6,7)" in lines
    assert not any("GPUs" in line for line in rank_lines(RANKS, [None, None], megabytes=16))
