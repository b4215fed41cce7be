"""The identity of a pipeline, for the manifest of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdp.data.options import PipelineOptions
from tfdp.data.sources.abstract import AbstractSource


def identify(
    source: AbstractSource, options: PipelineOptions, examples: int | None
) -> dict[str, Any]:
    """Describes a pipeline's source and options, as `Pipeline.identify` says."""
    chosen = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(PipelineOptions)
    }
    found: dict[str, Any] = {
        "kind": "pipeline",
        "source": type(source).__name__,
        "described": source.describe(),
        "examples": examples,
        "element_spec": str(source.element_spec),
        "identity": source.fingerprint,
        "covers": source.fingerprint_covers,
        "options": {**chosen, "map_fn": _name_of(options.map_fn)},
    }
    content = source.content()
    return found if content is None else found | content


def _name_of(function: Any) -> str | None:
    if function is None:
        return None
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None)}.{name}"
