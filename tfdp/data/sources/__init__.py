"""Sources of examples; `tfdp.data.pipeline` chooses one for what it is given.

Importing the package is cheap: each source, and what it needs, is loaded when its name is used.
"""

from typing import TYPE_CHECKING

from tfdp.base.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tfdp.data.sources.abstract import AbstractIndexedSource, AbstractStreamSource
    from tfdp.data.sources.array_records import ArrayRecordSource
    from tfdp.data.sources.arrays import ArraySource
    from tfdp.data.sources.image_folders import ImageDirectorySource
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

_LAZY = {
    "AbstractIndexedSource": ("tfdp.data.sources.abstract", "AbstractIndexedSource"),
    "AbstractStreamSource": ("tfdp.data.sources.abstract", "AbstractStreamSource"),
    "ArrayRecordSource": ("tfdp.data.sources.array_records", "ArrayRecordSource"),
    "ArraySource": ("tfdp.data.sources.arrays", "ArraySource"),
    "DatasetSource": ("tfdp.data.sources.streams", "DatasetSource"),
    "ImageDirectorySource": ("tfdp.data.sources.image_folders", "ImageDirectorySource"),
    "SequenceSource": ("tfdp.data.sources.sequences", "SequenceSource"),
    "TFRecordSource": ("tfdp.data.sources.records", "TFRecordSource"),
    "as_tfds_source": ("tfdp.data.sources.tfds", "as_tfds_source"),
}

__getattr__, __dir__ = lazy_names(globals(), _LAZY)
