"""A pipeline as JSON: its place, for a restart, and its identity, for the manifest of a run."""

import dataclasses
import json
import operator
from collections.abc import Mapping
from typing import Any

from tfdp.data.pipeline_options import PipelineOptions
from tfdp.data.sources.abstract import AbstractSource, AbstractStreamSource

VERSION = 1


def identity(source: AbstractSource, options: PipelineOptions) -> dict[str, Any]:
    """Returns what the order of the examples is made from; the batch size is no part of it."""
    made_by = {"source": source.fingerprint, "seed": options.seed, "shuffle": options.shuffle}
    if isinstance(source, AbstractStreamSource) and options.shuffle:
        made_by["shuffle_buffer"] = options.shuffle_buffer
    return made_by


def make(epoch: int, position: int, made_by: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of a pipeline.

    Args:
      epoch: The number of whole epochs that were trained.
      position: The number of examples of the next epoch that were trained.
      made_by: The pipeline's `identity`.
    """
    return {"version": VERSION, "epoch": epoch, "position": position, **made_by}


def checked(
    state: Mapping[str, Any] | str, made_by: Mapping[str, Any], length: int | None
) -> tuple[int, int]:
    """Returns the epoch and the position of a state.

    Args:
      state: The result of `make`, or its JSON.
      made_by: The `identity` of the pipeline that is to go on.
      length: The number of examples of an epoch, or None.

    Raises:
      ValueError: It is no state, or the state of a newer version or of another pipeline.
    """
    if isinstance(state, str):
        state = _parsed(state)
    if not isinstance(state, Mapping) or not {"version", "epoch", "position"} <= state.keys():
        raise ValueError(
            "`state` must be what `state()` returned, with `version`, `epoch` and `position`; "
            f"received {state!r}. Save `pipeline.state()` as JSON."
        )
    if state["version"] != VERSION:
        raise ValueError(
            f"`state` must be of version {VERSION}; received version {state['version']!r}. Use the "
            "tfdp that made it, or start without it."
        )
    for name, value in made_by.items():
        if state.get(name) != value:
            raise ValueError(
                f"`state` must be of the same examples in the same order, but its `{name}` is "
                f"{state.get(name)!r} and the pipeline's {value!r}. Make the pipeline with the "
                "same source and options, or start without the state."
            )
    epoch, position = _whole("epoch", state), _whole("position", state)
    if length is not None and position > length:
        raise ValueError(
            f"The `position` of `state` must be at most the {length} examples of an epoch; "
            f"received {position}. Use a state as `state()` returned it."
        )
    return epoch, position


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


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"`state` must be whole JSON; received text that ends or breaks at character "
            f"{error.pos} ({error.msg}). Use a state as `state()` returned it, or start without."
        ) from error


def _whole(name: str, state: Mapping[str, Any]) -> int:
    try:
        value = operator.index(state[name])
    except TypeError:
        value = -1
    if value < 0 or isinstance(state[name], bool):
        raise ValueError(
            f"The `{name}` of `state` must be a whole number of at least 0; received "
            f"{state[name]!r}. Use a state as `state()` returned it."
        )
    return value


def _name_of(function: Any) -> str | None:
    if function is None:
        return None
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None)}.{name}"
