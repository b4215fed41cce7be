"""Optimizers in models and in each other: which a model has, and which of them update at last."""

from typing import Any

import keras

from tfdp.callbacks.checkpoint.model_variables import parts

# What marks an optimizer that ends rounds; Keras would track an attribute set in the usual way.
IS_OUTER = "tfdp_is_outer"


def wrapped(optimizer: Any) -> list[Any]:
    """Returns the optimizers that `optimizer` wraps, and those in them."""
    inner = getattr(optimizer, "inner_optimizer", None)
    own = [*getattr(optimizer, "optimizers", []), *([] if inner is None else [inner])]
    return [each for one in own for each in (one, *wrapped(one))]


def innermost(optimizer: Any) -> list[Any]:
    """Returns the optimizers that `optimizer` wraps at last; itself, if it wraps none."""
    return [one for one in (optimizer, *wrapped(optimizer)) if not wrapped(one)]


def is_wrapper(optimizer: Any) -> bool:
    """Returns whether `optimizer` wraps others, maybe some that it has only once it is built."""
    return innermost(optimizer) != [optimizer] or hasattr(optimizer, "optimizers")


def is_outer(optimizer: Any) -> bool:
    """Returns whether `optimizer` ends rounds, and so has the same state on all replicas."""
    return IS_OUTER in vars(optimizer)


def optimizers_of(owner: Any) -> list[Any]:
    """Returns the innermost optimizers of a model and of the models in it, or of an optimizer."""
    owners = [owner] if isinstance(owner, keras.optimizers.Optimizer) else parts(owner)
    kept = [each for each in owners if isinstance(each, keras.optimizers.Optimizer)]
    found = [one for each in kept if not is_outer(each) for one in innermost(each)]
    return list({id(one): one for one in found}.values())
