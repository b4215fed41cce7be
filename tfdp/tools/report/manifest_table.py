"""The manifest of a run as tables of the page: which entries, under which titles."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any


def manifest_groups(manifest: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns (title, rows of (name, value)) of each part of a manifest, without what is null.

    >>> manifest_groups({"format": 1, "model": {"name": "cnn", "optimizer": {"rate": 0.1}},
    ...                  "command": ["python", "my train.py"], "data": None})
    [('Run', [('Command', "python 'my train.py'")]),
     ('Model', [('name', 'cnn'), ('optimizer.rate', '0.1')])]
    """
    simple: list[tuple[str, str]] = []
    groups = [("Run", simple)]
    for key, value in manifest.items():
        title = key.capitalize()
        if value is None or value in ({}, []) or key == "format":
            continue
        if key == "command" and isinstance(value, list):
            simple.append((title, shlex.join(map(str, value))))
        elif isinstance(value, dict):
            groups.append((title, list(_rows(value))))
        else:
            simple.append((title, _text(value)))
    return [(title, rows) for title, rows in groups if rows]


def _rows(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and item:
            yield from _rows(item, f"{name}.")
        elif item is not None:
            yield name, _text(item)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
