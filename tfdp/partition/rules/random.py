"""Stateless draws of random numbers: together the replicas have the bits that one device draws.

What is drawn is a function of the seed, so that each replica can make its own part of it.
"""

from collections.abc import Sequence
from typing import Any

from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import REPLICATED, Sharded
from tfdp.partition.rules.philox import AUTO_SELECT, PHILOX, is_philox, own_rows
from tfdp.partition.rules.registry import Results, Step, rule
from tfdp.partition.rules.side_effects import on_first
from tfdp.partition.sizes import Size, SizeLike, divided, product
from tfdp.partition.source import definition
from tfdp.partition.tensors import Tensor

# Each number takes a known place in the generator's order.
IN_ORDER = [
    "StatelessRandomNormal",
    "StatelessRandomUniform",
    "StatelessRandomUniformFullInt",
    "StatelessRandomUniformInt",
]

# How much a number takes of the generator's order depends on the numbers, or on the device.
OUT_OF_ORDER = [
    "StatelessParameterizedTruncatedNormal",
    "StatelessRandomBinomial",
    "StatelessRandomGammaV2",
    "StatelessRandomGammaV3",
    "StatelessRandomPoisson",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
]

_WHY = "its numbers are drawn in the order of the whole"

# Where each example has fewer numbers it costs less to draw all than to find the own ones.
_FEW = 16


@rule(*IN_ORDER, *(f"{type_}V2" for type_ in IN_ORDER), always=True)
def in_order(step: Step) -> Results:
    """Gives the shard that the shape asks for, whole if it asks for none. Sends nothing.

    Of a shard of axis 0 each replica draws the numbers of its own examples. Of another axis, of few
    numbers or from another generator than Philox it draws all and keeps its own; so it does of
    normal numbers where XLA draws, which puts them in another order for each shape.
    """
    shape, layout = asked_for(step)
    whole = all(tensor.layout == REPLICATED for tensor in step.inputs)
    if whole and layout is not None and _is_worth_it(step, shape, layout):
        state = _state(step)
        if state is not None:
            type_ = step.op.type.removesuffix("V2") + "V2"
            own = own_rows(step, layout, shape, type_, state, is_on_host=_is_of_a_seed(step))
            return step.results([own], layout, [shape])
    return drawn_replicated(step)


def _is_worth_it(step: Step, shape: Sequence[SizeLike | None], layout: Sharded) -> bool:
    if layout.axis != 0 or step.program.num_replicas == 1:
        return False
    if step.program.is_compiled and "Normal" in step.op.type:
        return False
    each = product([layout.inner, *shape[1:]])
    return not (isinstance(each, int) and each < _FEW)


def _state(step: Step) -> list[Output] | None:
    """Returns what a draw by key and counter takes after the shape; None if it is not by Philox."""
    _, *others = step.inputs
    if step.op.type.endswith("V2"):
        algorithm = others[2].constant()
        known = algorithm is not None and is_philox(int(algorithm))
        return [tensor.local for tensor in others] if known else None
    if not is_philox(AUTO_SELECT):
        return None
    seed, *bounds = (tensor.local for tensor in others)
    made = step.writer.node("StatelessRandomGetKeyCounter", [seed], Tseed=seed.dtype)
    return [*made, step.write.constant(PHILOX), *bounds]


def _is_of_a_seed(step: Step) -> bool:
    """Returns whether the key and the counter are made of a seed, which the host does."""
    if not step.op.type.endswith("V2"):
        return True
    return step.op.inputs[2].op.type == "StatelessRandomGetKeyCounter"


@rule(*OUT_OF_ORDER, always=True)
def out_of_order(step: Step) -> Results:
    """Gives the shard that the shape asks for; each replica draws all. Parameters are gathered."""
    return drawn_replicated(step)


@rule("Multinomial", "StatelessMultinomial", always=True)
def multinomial(step: Step) -> Results:
    """Gives the rows of the logits, which are gathered. Each replica draws all.

    With a hidden state the first replica does, and sends it to the others.
    """
    logits, number = step.inputs[:2]
    whole = on_first(step)[0].local if step.op.is_stateful else emitted_replicated(step)
    if logits.shape is None:
        return step.results([whole], REPLICATED)
    known = number.constant()
    shape = [logits.shape[0], None if known is None else int(known)]
    layout = logits.sharded
    return sliced(step, whole, shape, layout if layout is None or layout.axis == 0 else None)


@rule("RandomShuffle", "StatelessShuffle", always=True)
def shuffle(step: Step) -> Results:
    """Keeps the shard of the value, which is gathered. Each replica shuffles all.

    With a hidden state the first replica does, and sends it to the others.
    """
    value = step.inputs[0]
    whole = on_first(step)[0].local if step.op.is_stateful else emitted_replicated(step)
    return sliced(step, whole, value.shape, value.sharded)


@rule("RandomIndexShuffle")
def shuffled_index(step: Step) -> Results:
    """Keeps the shard of the indices. Sends nothing."""
    index, *others = step.inputs
    layout = index.sharded
    if layout is None or index.rank != 1:
        return None
    inputs = [index.local]
    for tensor, rank in zip(
        others, (1, 0), strict=True
    ):  # a seed and a number for each, or for all
        if tensor.rank == rank and tensor.layout == REPLICATED:
            inputs.append(tensor.local)
        elif tensor.rank == rank + 1 and tensor.dim(0) == layout.length:
            inputs.append(step.part(tensor, layout, _WHY))
        else:
            return None
    return step.results(step.emit(inputs), layout)


def asked_for(step: Step) -> tuple[list[SizeLike | None], Sharded | None]:
    """Returns the sizes that the shape vector asks for, and the shard of the one batch among them.

    Any shard is right. A number is taken for a batch only along axis 0, where the program fixes the
    batch's length. The shard is None where there is no batch, or more than one. There are no sizes
    where nothing is known of the vector.
    """
    place = _place_of_shape(step)
    sizes = None if place is None else step.inputs[place].sizes()
    shape: list[SizeLike | None] = [size if _is_known(step, size) else None for size in sizes or ()]
    found: list[Sharded] = []
    for axis, size in enumerate(shape):
        for batch in step.program.places:
            if isinstance(size, int):
                inner: Any = 1 if axis == 0 and size == batch.length else None
            else:
                inner = divided(size, batch.length) if isinstance(batch.length, Size) else None
            if inner is not None and (isinstance(inner, Size) or inner > 0):
                found.append(Sharded(axis, batch, inner))
    return shape, found[0] if len(found) == 1 else None


def _is_known(step: Step, size: Any) -> bool:
    return isinstance(size, (int, Size)) and step.program.knows(step.writer, size)


def _place_of_shape(step: Step) -> int | None:
    """Returns which input the shape is; None where the operation has none."""
    names = [arg.name for arg in definition(step.op.type).input_arg]
    return names.index("shape") if "shape" in names else None


def drawn_replicated(step: Step) -> Results:
    """Draws all on every replica, which keeps its part of the shard that the shape asks for."""
    shape, layout = asked_for(step)
    return sliced(step, emitted_replicated(step), shape or None, layout)


def emitted_replicated(step: Step) -> Output:
    """Writes a draw on every replica, with whole inputs."""
    step.require_sums(step.inputs)
    step.note_gathered(_WHY)
    return step.emit([step.replicated(tensor, _WHY) for tensor in step.inputs])[0]


def sliced(
    step: Step, whole: Output, shape: Sequence[SizeLike | None] | None, layout: Sharded | None
) -> Results:
    """Returns the replica's part of a result that each replica has whole."""
    if layout is None or shape is None:
        return step.results([whole], REPLICATED, [shape])
    own = step.part(Tensor(whole, REPLICATED, shape), layout)
    results = step.results([own], layout, [shape])
    results[0].replicated = whole
    return results
