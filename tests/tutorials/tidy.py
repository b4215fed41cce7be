"""The form in which notebooks are kept: `python tests/tutorials/tidy.py tutorials/*.ipynb`.

No outputs, no counts of runs and no editor's metadata, so that a diff shows what was changed by
hand. Ids of cells stay as they are; a cell that has none is named after its text.
"""

import hashlib
import json
import pathlib
import sys

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def tidied(text):
    """A notebook's file as it should be, from the file as an editor has saved it."""
    notebook = json.loads(text)
    cells = [_tidied_cell(cell) for cell in notebook["cells"]]
    kept = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def _tidied_cell(cell):
    source = "".join(cell["source"]).strip("\n")
    kept = {
        "cell_type": cell["cell_type"],
        "id": cell.get("id") or f"cell-{hashlib.sha1(source.encode()).hexdigest()[:8]}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    if cell["cell_type"] == "code":
        kept |= {"execution_count": None, "outputs": []}
    return dict(sorted(kept.items()))


if __name__ == "__main__":
    for path in map(pathlib.Path, sys.argv[1:]):
        path.write_text(tidied(path.read_text()))
