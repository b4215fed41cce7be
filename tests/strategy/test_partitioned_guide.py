"""The programs of the guide to `strategy.partitioned` print what it shows, as one device does."""

import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).parents[2] / "docs/partitioned/README.md"
BLOCKS = re.findall(r"^```(python)?\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
PROGRAMS = [text for kind, text in BLOCKS if kind]
SHOWN = [text for kind, text in BLOCKS if not kind]
END = "~~~"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive(
        "strategy/programs/test_partitioned_function.py::test_any_length_of_a_batch_takes_one_trace"
    ),
]


def printed(path, programs):
    """What each of some programs prints, which are parts of one file."""
    # In place of the line between two blocks, for the guide names lines of the whole file.
    path.write_text("".join(f'{program}print("{END}")\n' for program in programs))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(f"{END}\n")[:-1]


def comparable(text):
    """A text without what differs between versions of Keras: how many operations there are."""
    kept = " ".join(text.partition("COMPUTED LOCALLY")[0].split())
    return re.sub(r"[\d,]+(?= of| operations?| products?)", "#", kept)


def test_the_programs_print_what_the_guide_shows(tmp_path):
    found = printed(tmp_path / "train.py", PROGRAMS)
    assert [*map(comparable, found)] == [*map(comparable, SHOWN)]


def test_the_first_program_trains_as_on_one_device(tmp_path):
    program = PROGRAMS[0].replace("@strategy.partitioned", "@tf.function")
    program, count = re.subn(r"tfdp\.\w+\(.*\)", "tf.distribute.get_strategy()", program)
    assert count == 1
    assert printed(tmp_path / "train.py", [program]) == SHOWN[:1]
