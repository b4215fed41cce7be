"""The versions of Keras and TensorFlow that tfdp was tested with, and their fingerprints.

A file such as `fingerprints/keras-3.15.1.json` holds the fingerprint of each function of one
version that tfdp wraps, and of each private method that it calls.
`tests/base/hooks/write_fingerprints.py` writes the files of the installed versions.
"""

import functools
import hashlib
import inspect
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from tfdp.base.warn_once import warn_once
from tfdp.errors import HookError

_FOLDER = pathlib.Path(__file__).parent / "fingerprints"
_PACKAGES = {"keras": "Keras", "tensorflow": "TensorFlow"}


@functools.cache
def tested(package: str) -> dict[str, dict[str, str]]:
    """Returns for each tested version of a package its fingerprints, by the functions' titles.

    >>> "Model.export" in tested("keras")["3.15.1"]
    True
    """
    paths = {path.stem.partition("-")[2]: path for path in _FOLDER.glob(f"{package}-*.json")}
    ordered = sorted(paths, key=lambda version: [int(part) for part in version.split(".")])
    return {version: json.loads(paths[version].read_text("utf-8")) for version in ordered}


def current(package: str) -> str:
    """Returns the version of a package that this process has imported."""
    return sys.modules[package].__version__


def title(owner: Any, name: str) -> str:
    """Returns the title of a function: its name in messages and in the files of fingerprints.

    >>> title(json, "loads"), title(pathlib.Path, "open")
    ('json.loads', 'Path.open')
    """
    owner = owner if hasattr(owner, "__name__") else type(owner)
    return f"{owner.__name__.rpartition('.')[2]}.{name}"


def package_of(owner: Any) -> str:
    """Returns the top-level package of a class or module."""
    return (getattr(owner, "__module__", None) or owner.__name__).partition(".")[0]


def fingerprint(member: Any) -> str:
    """Returns the first 12 digits of the SHA-256 of the source of a function, without its wrappers.

    The result is empty where the source cannot be read.
    """
    member = member.fget if isinstance(member, property) else member
    try:
        source = inspect.getsource(inspect.unwrap(member))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def check(targets: Iterable[tuple[Any, str]]) -> None:
    """Compares functions with those of the versions that tfdp was tested with.

    Logs a warning if the installed version was not tested, or if a function differs from those of
    all tested versions.

    Args:
      targets: The owner and the name of each function.

    Raises:
      HookError: A function does not exist under its name.
    """
    by_package: dict[str, list[tuple[Any, str]]] = {}
    for owner, name in targets:
        if name not in vars(owner):
            raise HookError(
                f"{title(owner, name)} must exist, for tfdp relies on it, but "
                f"{describe_current(package_of(owner))} has none. {_remedy()}"
            )
        by_package.setdefault(package_of(owner), []).append((owner, name))
    for package in _PACKAGES.keys() & by_package.keys():
        _warn(package, by_package[package])


def moved(error: ImportError) -> HookError | None:
    """Returns the HookError for a failed import from Keras or TensorFlow; None for any other."""
    package = (error.name or "").partition(".")[0]
    if package not in _PACKAGES or package not in sys.modules:
        return None
    return HookError(
        f"A private name that tfdp relies on must exist, but {describe_current(package)} lacks it: "
        f"{error}. {_remedy()}"
    )


def describe_current(package: str) -> str:
    """Returns the name and the installed version of a package, for messages."""
    if package not in _PACKAGES:
        return package
    return f"{_PACKAGES[package]} {current(package)}"


def describe_tested() -> str:
    """Returns the names and versions of the packages that tfdp was tested with, for messages.

    >>> describe_tested()
    'Keras ... and TensorFlow ...'
    """
    return " and ".join(f"{name} {', '.join(tested(key))}" for key, name in _PACKAGES.items())


def _remedy() -> str:
    return f"tfdp was tested with {describe_tested()}: install one of these, or a newer tfdp."


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _warn(package: str, targets: list[tuple[Any, str]]) -> None:
    """Logs once that a version was not tested, and which functions differ from tested ones.

    A patch release in which no function differs from a tested one of its minor version is silent.
    """
    known = tested(package)
    version = current(package)
    minor = [known[each] for each in known if _minor(each) == _minor(version)]
    tables = [known[version]] if version in known else minor or list(known.values())
    changed = [
        title(owner, name)
        for owner, name in targets
        if fingerprint(vars(owner)[name]) not in {table.get(title(owner, name)) for table in tables}
    ]
    if minor and not changed:
        return
    warn_once(
        "%s %s. Install one of the tested versions, or check your program with `tfdp.verify`.",
        f"tfdp was tested with {describe_tested()}, but {describe_current(package)} is installed.",
        f"These functions that tfdp relies on differ there: {', '.join(changed)}"
        if changed
        else "The functions that tfdp relies on are there as in a tested version",
    )
