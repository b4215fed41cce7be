"""Writes the fingerprints of the functions that tfdp relies on, as they are in what is installed.

Run it as `python tests/base/hooks/write_fingerprints.py` in an environment that has the versions of
TensorFlow and Keras to be written down, after every test has passed there. A file that is there is
replaced; `git diff` shows which functions have changed.
"""

import collections
import json
import pathlib

import tfdp.strategy.data_parallel  # noqa: F401, registers hooks of its own
from tfdp import keras as tfdp_keras
from tfdp.base import hooks
from tfdp.base.hooks import versions

FOLDER = pathlib.Path(versions.__file__).parent / "fingerprints"


def found():
    """By package and title, the fingerprint of everything that tfdp relies on."""
    tfdp_keras.register()
    tables = collections.defaultdict(dict)
    for owner, name in hooks.relied_on():
        package = versions.package_of(owner)
        tables[package][versions.title(owner, name)] = versions.fingerprint(vars(owner)[name])
    return tables


if __name__ == "__main__":
    for package, table in found().items():
        path = FOLDER / f"{package}-{versions.current(package)}.json"
        path.write_text(json.dumps(table, indent=2, sort_keys=True) + "\n", "utf-8")
        print(f"{path}: {len(table)} functions")
