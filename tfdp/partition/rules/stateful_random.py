"""Draws of random numbers that change a state.

That of a `tf.random.Generator` is a variable, of which each replica has an equal copy, and advances
it alike. Other states are hidden in the operation: the first replica draws for all.
"""

from tfdp.partition.layouts import REPLICATED
from tfdp.partition.rules.random import asked_for, drawn_replicated, sliced
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.side_effects import on_first
from tfdp.partition.tensors import Tensor

OF_A_GENERATOR = [
    "StatefulRandomBinomial",
    "StatefulStandardNormal",
    "StatefulStandardNormalV2",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "StatefulUniformFullInt",
    "StatefulUniformInt",
]

HIDDEN_STATE = [
    "ParameterizedTruncatedNormal",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
]

# The result has the axes of the shape that is asked for, and then those of the parameter.
HIDDEN_STATE_BY_PARAMETER = ["RandomGamma", "RandomPoisson", "RandomPoissonV2"]

CANDIDATES = [
    "AllCandidateSampler",
    "FixedUnigramCandidateSampler",
    "LearnedUnigramCandidateSampler",
    "LogUniformCandidateSampler",
    "ThreadUnsafeUnigramCandidateSampler",
    "UniformCandidateSampler",
]


@rule(*OF_A_GENERATOR, always=True, partial=True)
def of_a_generator(step: Step) -> Results:
    """Gives the shard that the shape asks for; each replica draws all from its copy of the state.

    Parameters are summed or gathered first.
    """
    _require_equal_states(step)
    return drawn_replicated(step)


@rule("RngReadAndSkip", "RngSkip", always=True, partial=True)
def skip(step: Step) -> Results:
    """Advances every replica's copy of a generator's state alike. Sends nothing."""
    _require_equal_states(step)
    inputs = [step.replicated(tensor, "it changes a generator's state") for tensor in step.inputs]
    return step.results(step.emit(inputs), REPLICATED)


def _require_equal_states(step: Step) -> None:
    """Has all but the generator's state summed, of which each replica must have the same."""
    state, *others = step.inputs
    if state.layout != REPLICATED:
        raise ValueError("each replica has a share of the generator's state (ON_READ), not a copy")
    step.require_sums(others)


@rule(*HIDDEN_STATE, always=True)
def hidden_state(step: Step) -> Results:
    """Gives the shard that the shape asks for. The first replica draws, and sends all."""
    shape, layout = asked_for(step)
    return sliced(step, on_first(step)[0].local, shape or None, layout)


@rule(*HIDDEN_STATE_BY_PARAMETER, always=True)
def hidden_state_by_parameter(step: Step) -> Results:
    """Gives the shard that the shape asks for, or the parameter's. The first replica draws."""
    vector, parameter = step.inputs
    whole = on_first(step)[0].local
    axes, own = vector.sizes(), parameter.sharded
    if axes is None or parameter.shape is None:
        return step.results([whole], REPLICATED)
    shape, layout = asked_for(step)
    if own is not None:
        layout = own.at(own.axis + len(axes)) if layout is None else None
    return sliced(step, whole, [*shape, *parameter.shape], layout)


@rule(*CANDIDATES)
def candidates(step: Step) -> Results:
    """Gives whole candidates, and the rows of what is expected of the true classes.

    The classes are gathered. The first replica draws, and sends what it has drawn to the others.
    """
    (classes,) = step.inputs
    drawn, expected, expected_of_drawn = (result.local for result in on_first(step))
    layout, shape = classes.sharded, classes.shape
    if layout is None or shape is None:
        return step.results([drawn, expected, expected_of_drawn], REPLICATED)
    own = step.part(Tensor(expected, REPLICATED, shape), layout)
    found = step.results(
        [drawn, own, expected_of_drawn], [REPLICATED, layout, REPLICATED], [None, shape, None]
    )
    found[1].replicated = expected
    return found
