"""Runs the tutorials for their pages: `python docs/notebooks.py FOLDER`.

The copies with outputs go to FOLDER. A copy is named after the notebook's code, the files beside
it, the package and the versions that it ran with. So a notebook runs again when one of these
changes, and not when its text does.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib
import platform
import sys
import time

import nbclient
import nbformat

ROOT = pathlib.Path(__file__).resolve().parent.parent
TUTORIALS = ROOT / "tutorials"

# What one cell may take; a whole notebook takes about a minute.
CELL_SECONDS = 600


def main(folder: pathlib.Path, notebooks: list[pathlib.Path]) -> int:
    """Runs each notebook that has no copy, and says how long it took.

    A notebook whose data are not on this machine is named with what gets them, and its page shows
    the code alone.

    Returns:
      1 if a notebook failed, else 0; the others are run in any case.
    """
    folder.mkdir(parents=True, exist_ok=True)
    status = 0
    for notebook in notebooks:
        copy = copy_of(notebook, folder)
        if copy.exists():
            continue
        begin = time.perf_counter()
        try:
            content = nbformat.writes(_run(notebook))
        except nbclient.exceptions.CellExecutionError as error:
            if error.ename == "DataUnavailableError":
                print(f"{notebook.name} is shown without its results: {error.evalue}", flush=True)
            else:
                print(f"{notebook.name} failed:\n{error}", file=sys.stderr, flush=True)
                status = 1
            continue
        for old in folder.glob(f"{notebook.stem}-*"):
            old.unlink()
        # A copy that is half written has another name.
        new = copy.with_suffix(".new")
        new.write_text(content)
        new.replace(copy)
        print(f"{notebook.name} ran in {time.perf_counter() - begin:.0f} s", flush=True)
    return status


def with_outputs(notebook: pathlib.Path, folder: pathlib.Path) -> str:
    """Returns the notebook's text with the outputs of its copy, without them if it has none."""
    copy = copy_of(notebook, folder)
    if not copy.exists():
        return notebook.read_text()
    shown, ran = (nbformat.read(path, as_version=4) for path in (notebook, copy))
    for cell, executed in zip(_code(shown), _code(ran), strict=True):
        cell.outputs, cell.execution_count = executed.outputs, executed.execution_count
    return nbformat.writes(shown)


def copy_of(notebook: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Returns the path of the copy with the outputs that the notebook's code has now."""
    parts = [cell.source.encode() for cell in _code(nbformat.read(notebook, as_version=4))]
    beside = [path for path in notebook.parent.rglob("*") if path.suffix in (".py", ".json")]
    parts += [path.read_bytes() for path in (*sorted(beside), *sorted(ROOT.glob("tfdp/**/*.py")))]
    parts.append(platform.python_version().encode())
    parts += [
        importlib.metadata.version(name).encode() for name in ("keras", "numpy", "matplotlib")
    ]
    content = hashlib.sha256(b"\0".join(parts))
    return folder / f"{notebook.stem}-{content.hexdigest()[:16]}.ipynb"


def _code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _run(path: pathlib.Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    client = nbclient.NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources=resources,
        # It warns that it listens on the loopback interface, as all kernels do.
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    return client.execute()


if __name__ == "__main__":
    # The kernel of this environment, not one that the user has installed for all.
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    sys.exit(main(pathlib.Path(sys.argv[1]), sorted(TUTORIALS.glob("*.ipynb"))))
