"""The promise holds across processes: its own tests, run in every process of a cluster at once.

So are those of the strategy there, `strategy/in_cluster.py`, and of the programs that replicas run
together, `partition/in_cluster.py`: to start a cluster costs as much.
"""

import pathlib

import clusters
import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(620)]

FOLDER = pathlib.Path(__file__).parent
OTHERS = sorted({*FOLDER.glob("test_*.py")} - {pathlib.Path(__file__)})

# Modules whose mechanisms add numbers up over replicas, as those of the other telling tests do:
# across processes `make test` shows the sum once.
OF_SUMS = {
    "test_aggregation",
    "test_clipping",
    "test_losses",
    "test_normalization",
    "test_whole_batch",
    "test_whole_gradients",
}

# Modules whose mechanisms depend on where the replicas are: each process reads its own data, writes
# or leaves files to rank 0, draws, gathers.
ABOUT_PROCESSES = {
    *(
        "test_callbacks",
        "test_corners",
        "test_custom_loops",
        "test_data_errors",
        "test_epoch_iterators",
    ),
    *("test_inputs", "test_metrics", "test_one_program_data", "test_random", "test_saving"),
    *("test_shapes", "test_sparse_inputs", "test_stand_ins"),
}


def named(names):
    """The promise's test modules of these names, all of which must be there."""
    found = [path for path in OTHERS if path.stem in names]
    assert len(found) == len(names)
    return found


def test_in_two_processes_the_telling_tests_pass():
    # Each rank reads the modules that it is given, which takes a second for each few of them.
    telling = {path.stem for path in OTHERS if "mark.telling" in path.read_text()}
    strategy, programs = (FOLDER.parent / name for name in ("strategy", "partition"))
    files = [each / "in_cluster.py" for each in (strategy, programs)]
    files += named(telling - OF_SUMS)
    options = ["-m", "telling and not exhaustive"]
    clusters.every_rank_passes(files, options, 2)


@pytest.mark.exhaustive("test_in_two_processes_the_telling_tests_pass")
def test_in_two_processes_all_tests_pass_that_are_about_processes_or_tell_of_sums_and_programs():
    of_sums = named(OF_SUMS)
    files = [*named(ABOUT_PROCESSES), *of_sums, FOLDER.parent / "foreign" / "test_programs.py"]
    others = f"(test_programs or {' or '.join(path.stem for path in of_sums)})"
    chosen = f"({others} and telling) or (not {others} and not exhaustive and not telling)"
    clusters.every_rank_passes(files, ["-k", chosen], 2)
