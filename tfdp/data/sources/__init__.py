"""Where examples come from; `tfdp.data.pipeline` chooses one for what it is given.

Importing it is cheap: each source, and what it needs, is loaded when its name is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdp.data.sources.array_records import ArrayRecordSource
    from tfdp.data.sources.arrays import ArraySource
    from tfdp.data.sources.base import AbstractIndexedSource, AbstractStreamSource
    from tfdp.data.sources.images import ImageDirectorySource
    from tfdp.data.sources.records import TFRecordSource
    from tfdp.data.sources.sequences import SequenceSource
    from tfdp.data.sources.streams import DatasetSource
    from tfdp.data.sources.tfds import as_tfds_source

__all__ = [
    "AbstractIndexedSource",
    "AbstractStreamSource",
    "ArrayRecordSource",
    "ArraySource",
    "DatasetSource",
    "ImageDirectorySource",
    "SequenceSource",
    "TFRecordSource",
    "as_tfds_source",
]

_MODULES = {
    "AbstractIndexedSource": "base",
    "AbstractStreamSource": "base",
    "ArrayRecordSource": "array_records",
    "ArraySource": "arrays",
    "DatasetSource": "streams",
    "ImageDirectorySource": "images",
    "SequenceSource": "sequences",
    "TFRecordSource": "records",
    "as_tfds_source": "tfds",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tfdp.data.sources' has no attribute {name!r}")
    module = importlib.import_module(f"tfdp.data.sources.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
