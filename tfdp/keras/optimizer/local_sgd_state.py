"""The state of rounds for an optimizer, beside its slots, which each replica has for itself."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.callbacks.checkpoint.model_variables import tensorflows
from tfdp.communication.collectives import payloads
from tfdp.communication.replicas import replicas_of
from tfdp.keras._keras import BaseOptimizer, strategy_of_optimizer, variables_of_optimizer
from tfdp.keras.divergent_variables import apart_of, check_round_ended
from tfdp.keras.nested_optimizers import IS_OUTER, is_wrapper
from tfdp.keras.optimizer.local_sgd_sync import ROUND
from tfdp.synchronization.weight_averaging import WeightAveraging


@contextlib.contextmanager
def round_of(
    optimizer: BaseOptimizer, variables: Sequence[Any], synchronization: WeightAveraging
) -> Iterator[None]:
    """Gives each replica slots of its own while `optimizer` is built, and then makes its round.

    Outside of replica functions a slot reads as the mean of the replicas'. It may be built by
    several methods, which call each other.
    """
    replicas = replicas_of(strategy_of_optimizer(optimizer))
    known = vars(optimizer)
    if replicas is None or is_wrapper(optimizer) or ROUND in known:
        yield
        return
    # Raises while the optimizer is not built, and so again where a first error is not seen.
    _fragments(variables, synchronization)
    known[ROUND] = {}
    try:
        with replicas.averaged_on_read():
            yield
        known[ROUND] = _made(optimizer, synchronization)
    except BaseException:
        del known[ROUND]
        raise


def _made(optimizer: BaseOptimizer, synchronization: WeightAveraging) -> dict[str, Any]:
    """Returns what a round needs.

    Returns:
      `apart`: the number of updates since all variables were the same on all replicas; `fragments`:
      the positions of each fragment's variables; with an outer optimizer `outer`: one for each
      fragment, and `began`: the values at which the variables' round began; with an overlap `due`:
      1 more than the number of the fragment that the next step synchronizes, 0 for none, and less
      than 0 where that step has made the sum, and not yet used it.
    """
    variables = list(variables_of_optimizer(optimizer))
    fragments = _fragments(variables, synchronization)
    with tf.init_scope():
        check_round_ended(variables, "build an optimizer")
        apart = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates_in_round")
        outer = [one for one in (synchronization.make_outer_optimizer() for _ in fragments) if one]
        began = [_copy(variable) for variable in variables] if outer else []
        for one, members in zip(outer, fragments, strict=False):
            vars(one)[IS_OUTER] = True
            one.build([began[index] for index in members])
        made = {"apart": apart, "began": began, "outer": outer, "fragments": fragments}
        if synchronization.overlap is not None:
            made["due"] = tf.Variable(0, trainable=False, dtype=tf.int64, name="due_fragment")
    for variable in variables:
        tensorflows(variable).apart = (*apart_of(variable), apart)
    return made


def _fragments(variables: Sequence[Any], synchronization: WeightAveraging) -> list[list[int]]:
    """Returns the positions of each fragment's variables: the sizes are as even as can be.

    Raises:
      ValueError: There are more fragments than variables.
    """
    count = synchronization.fragments
    if count > len(variables):
        raise ValueError(
            "Each fragment must have a variable, but an optimizer has "
            f"{len(variables)}, and the strategy has {synchronization!r}. Use at most "
            f"fragments={len(variables)}."
        )
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    totals = [0] * count
    fragments: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        # Of equal totals, as of variables without elements, the one with fewer variables.
        least = min(range(count), key=lambda k: (totals[k], len(fragments[k])))
        fragments[least].append(index)
        totals[least] += sizes[index]
    return [sorted(members) for members in fragments]


def _copy(variable: Any) -> keras.Variable:
    dtype = payloads.precise(variable.dtype)
    return keras.Variable(
        tf.zeros(variable.shape, dtype), dtype=dtype.name, name="at_beginning_of_round"
    )
