"""After a collective that failed tfdp says what failed; each test's script has its process."""

import pathlib
import subprocess
import sys

import pytest
from replica_counts import CLUSTER_REPLICAS

SCRIPT = pathlib.Path(__file__).parent / "scripts" / "ends_collectives.py"


@pytest.mark.multiprocess
@pytest.mark.skipif(bool(CLUSTER_REPLICAS), reason="it is about one process")
def test_what_begins_after_a_collective_that_failed_names_it_and_its_line():
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("RESULT", "ERROR"))]
    summed, first, *later, alone = lines
    assert summed == "RESULT 2.0", done.stderr
    line = next(
        number
        for number, text in enumerate(SCRIPT.read_text().splitlines(), 1)
        if "tf.unique" in text
    )
    asked = f"gather of int32[batch_0] for Unique at ends_collectives.py:{line}, in distinct."
    for said in (first, *later):
        assert said.startswith("ERROR InternalError")
        assert "that group has size 2" in said and "CollectiveGatherV2" in said
        assert f"In the program `distinct`: {asked}" in said
    assert len(later) == 2 and all("must not have failed, but one has" in said for said in later)
    assert "must not have failed" not in first
    assert alone == "RESULT 3.0"  # one replica has no collectives
