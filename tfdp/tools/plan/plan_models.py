"""The model that is planned for, built from what the command line names."""

import importlib
import importlib.util
import pathlib
import sys
from typing import Any

_WAYS = (
    "`--model train.py:build_model`, `--model package.module:build_model`, `--model model.keras` "
    "or `--model ResNet50`"
)


class ModelError(ValueError):
    """An error where the model cannot be built, or not be timed."""


def build(what: str) -> Any:
    """Builds a Keras model.

    Args:
      what: `FILE.py:FUNCTION` or `MODULE:FUNCTION`, whose function takes no arguments and returns
        the model; `FILE.keras`; or the name of a model in `keras.applications`.

    Raises:
      ModelError: There is no such model, or building it fails.

    >>> build("no.such:model")
    Traceback (most recent call last):
    tfdp.tools.plan.plan_models.ModelError: `model` must name a model that can be built; received
    ...
    """
    import keras

    try:
        if what.endswith((".keras", ".h5")):
            made = keras.models.load_model(what)
        elif what.endswith(".py"):
            raise ValueError(
                f"a file needs the function that returns the model: {what}:build_model"
            )
        elif ":" in what:
            made = _function(what)()
        else:
            made = _application(what)
    except Exception as error:
        raise ModelError(
            f"`model` must name a model that can be built; received {what!r}, which fails "
            f"({type(error).__name__}: {error}); do {_WAYS}."
        ) from error
    if not isinstance(made, keras.Model):
        raise ModelError(
            f"`model` must name what returns a `keras.Model`; received {what!r}, which returns "
            f"{type(made).__name__}; do {_WAYS}."
        )
    return made


def _function(what: str) -> Any:
    where, _, name = what.rpartition(":")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"planned_{pathlib.Path(where).stem}", where)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(pathlib.Path(where).parent.resolve()))
        sys.modules[spec.name] = module  # where a dataclass looks its annotations up
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        module = importlib.import_module(where)
    return getattr(module, name)


def _application(name: str) -> Any:
    import keras

    kind = getattr(keras.applications, name, None)
    if kind is None or not name[:1].isupper():
        raise ValueError(f"keras.applications has no {name}")
    return kind(weights=None)
