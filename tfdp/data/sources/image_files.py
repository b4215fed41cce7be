"""The image files that a folder holds, and their order."""

import os
import zlib
from collections.abc import Iterator

import tensorflow as tf

FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


def class_folders(directory: str) -> list[str]:
    """Returns the names of the folders in `directory`, sorted, without hidden ones."""
    if not tf.io.gfile.isdir(directory):
        raise ValueError(
            f"`directory` must be a folder, but received {directory!r}. Check the path, and that "
            "this host can read it."
        )
    names = sorted(name.removesuffix("/") for name in tf.io.gfile.listdir(directory))
    return [
        name
        for name in names
        if not name.startswith(".") and tf.io.gfile.isdir(os.path.join(directory, name))
    ]


def image_names(directory: str, class_names: list[str] | None) -> tuple[list[str], list[int]]:
    """Returns the names of the images relative to `directory`, and their labels."""
    if class_names == []:
        raise ValueError(
            "`directory` must have a folder for each class, but there is no folder in "
            f"{directory!r}. Use labels=None for the images alone."
        )
    if class_names is None:
        class_folders(directory)  # refuses what is no folder
    found = [
        (os.path.normpath(os.path.join(folder, name)), label)
        for label, folder in enumerate(class_names or [""])
        for name in _names_below(os.path.join(directory, folder))
    ]
    if not found:
        raise ValueError(
            f"`directory` must hold images ({', '.join(FORMATS)}), but there is none in "
            f"{directory!r} and the folders below it. Check the path and the files' names."
        )
    return [name for name, _ in found], [label for _, label in found]


def _names_below(folder: str) -> Iterator[str]:
    """Yields names relative to `folder`; like Keras, follows no links on a local disk."""
    walk = tf.io.gfile.walk if "://" in folder else os.walk
    for root, _, names in sorted(walk(folder), key=lambda found: found[0]):
        for name in sorted(names):
            if name.lower().endswith(FORMATS):
                yield os.path.relpath(os.path.join(root, name), folder)


def checksum(names: list[str], paths: list[str]) -> int:
    """Returns a checksum of the names and the sizes of the files."""
    checksum = 0
    for name, path in zip(names, paths, strict=True):
        part = f"{name.replace(os.sep, '/')} {tf.io.gfile.stat(path).length}\n"
        checksum = zlib.crc32(part.encode(), checksum)
    return checksum
