"""`tfdp data index` writes indexes, names what is corrupt, and needs no TensorFlow."""

import os
import subprocess
import sys

import pytest
from data.sources.record_files import flip, payloads, write

from tfdp.data.sources.record_index import index_path, load_index
from tfdp.tools.cli import main


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "a.tfrecord", payloads(10))


def test_each_file_gets_an_index(tmp_path, capsys):
    paths = [write(tmp_path / name, payloads(3)) for name in "ab"]
    assert main(["data", "index", *paths]) == 0
    assert capsys.readouterr().out == "".join(f"{path}: 3 records indexed\n" for path in paths)
    assert all(len(load_index(path)) == 3 for path in paths)


def test_a_pattern_in_quotes_leaves_indexes_out(path, tmp_path):
    for _ in range(2):
        assert main(["data", "index", str(tmp_path / "*")]) == 0
    assert len(os.listdir(tmp_path)) == 2


def test_an_index_that_fits_is_kept_but_by_force(path, capsys):
    main(["data", "index", path])
    before = os.stat(index_path(path)).st_ino
    assert main(["data", "index", path]) == 0
    assert "already indexed" in capsys.readouterr().out
    assert os.stat(index_path(path)).st_ino == before
    assert main(["data", "index", "--force", path]) == 0
    assert "10 records indexed" in capsys.readouterr().out


def test_one_that_does_not_fit_is_replaced_by_force_only(path, capsys):
    main(["data", "index", path])
    write(path, payloads(11))
    with pytest.raises(SystemExit) as caught:
        main(["data", "index", path])
    assert caught.value.code == 2
    assert "--force" in capsys.readouterr().err
    assert main(["data", "index", "--force", path]) == 0
    assert len(load_index(path)) == 11


def test_what_is_corrupt_is_named(path, capsys):
    flip(path, 2 * 56 + 20)
    flip(path, 7 * 56)
    for _ in range(2):
        assert main(["data", "index", path]) == 1
        told = capsys.readouterr().err
        assert f"{path}: 1 corrupt records, at bytes 112" in told
        assert f"{path}: nothing can be read from byte 392" in told


def test_a_file_that_is_missing_is_an_error_without_traceback(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["data", "index", str(tmp_path / "none")])
    assert caught.value.code == 2
    assert "does not" in capsys.readouterr().err


def test_it_needs_no_tensorflow(path):
    program = (
        "import sys; from tfdp.tools.cli import main; "
        f"assert main(['data', 'index', {path!r}]) == 0; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
