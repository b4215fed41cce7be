"""Input: sources of examples, and pipelines with the same batches for any number of replicas.

Importing the package is cheap: it loads TensorFlow when the first name that needs it is used.
"""

from typing import TYPE_CHECKING

from tfdp.base.lazy_imports import lazy_names

if TYPE_CHECKING:
    from tfdp.data import sources
    from tfdp.data.build import pipeline
    from tfdp.data.pipelines import Pipeline

__all__ = ["Pipeline", "pipeline", "sources"]

_LAZY = {
    "Pipeline": ("tfdp.data.pipelines", "Pipeline"),
    "pipeline": ("tfdp.data.build", "pipeline"),
    "sources": ("tfdp.data.sources", None),
}

__getattr__, __dir__ = lazy_names(globals(), _LAZY)
