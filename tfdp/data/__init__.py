"""Input: sources of examples, and the same batches of them for any number of replicas.

Importing it is cheap: TensorFlow is loaded when the first name that needs it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdp.data import sources
    from tfdp.data.build import pipeline
    from tfdp.data.global_batches import Pipeline

__all__ = ["Pipeline", "pipeline", "sources"]

_LAZY = {
    "Pipeline": ("tfdp.data.global_batches", "Pipeline"),
    "pipeline": ("tfdp.data.build", "pipeline"),
    "sources": ("tfdp.data.sources", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tfdp.data' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
