"""Files that are replaced whole."""

import pytest

from tfdp.files import replace_text


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "f.json"
    path.write_text("old")
    replace_text(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError, match=r"absent"):
        replace_text(tmp_path / "absent" / "f.json", "new")


def test_what_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "f.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(path, "\udcff")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
