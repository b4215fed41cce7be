"""The warning that a model trains on one device, where a strategy of several replicas was made."""

import logging
import weakref
from typing import Any

import tensorflow as tf

from tfdp.base import hooks
from tfdp.communication import collectives

_SUBJECT = "a model that was built outside of the scope"
_meant: weakref.WeakSet[Any] = weakref.WeakSet()  # the models that are to train on one device


def mean_one_device(model: Any) -> None:
    """Notes that a model trains outside of any scope on purpose."""
    _meant.add(model)


def warn(model: Any) -> None:
    """Says, once for a strategy, that a model which is to be trained was made outside its scope."""
    if model in _meant or model.distribute_strategy is not tf.distribute.get_strategy():
        return  # it trains under a strategy of another kind
    forgotten = [each for each in hooks.users() if each.num_replicas_in_sync > 1]
    told = [each.adapter_state.warned_about for each in forgotten]
    if not forgotten or any(_SUBJECT in each for each in told):
        return
    for each in told:
        each.add(_SUBJECT)
    trains = (
        "each rank trains it alone, with all of the data"
        if collectives.joined()
        else f"one device trains it, and not the {forgotten[-1].num_replicas_in_sync} replicas"
    )
    logging.getLogger("tfdp").warning(
        "%r was built outside the strategy's scope: %s. Build and compile it in `with "
        "strategy.scope():`.",
        model.name,
        trains,
    )
