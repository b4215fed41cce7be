"""Weights that are sharded on the devices, gathered where a layer needs them, then freed.

A gather is given each use of a weight by itself, the backward pass' too, so that no weight is whole
between its uses. What an update makes of a weight, number by number, and sums of all its numbers,
such as norms, are computed of the parts. A loop is given its weights whole: gathered in it, they
would be in each of its rounds.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from tfdp.strategy.xla._jax import ir, main_of, sdy, stablehlo

# A weight of more uses, such as of a cell whose time steps are written one after the other, is
# gathered once, as the program begins.
MOST_USES = 4


class _Use(NamedTuple):
    """A use of a weight: the operation in the program's own block, and how the weight gets there.

    Attributes:
      at: Where the operation is in the block.
      operation: The operation, or the one in the block that it is in.
      operands: Each operand that is the weight: of which operation, and its place.
      made_by: By which operations what is used is made of the weight, the first one first.
    """

    at: int
    operation: Any
    operands: list[tuple[Any, int]]
    made_by: tuple[Any, ...]


def gather_weights(
    module: Any, weights: Mapping[int, str], sharded_results: Collection[int], mesh: str
) -> frozenset[int]:
    """Has weights that are sharded along the batch axis gathered at each of their uses.

    A gather waits for what the use before it is given, so that the devices may exchange a weight
    while they compute with the one before, and no sooner: two are whole at once.

    Args:
      module: The module.
      weights: The places of its parameters that are weights and sharded along the batch axis, and
        how their axes lie where they are gathered, as Shardy writes it.
      sharded_results: The places of its sharded results.
      mesh: The mesh, as Shardy writes it.

    Returns:
      The places of the parameters that must be whole as the module begins: weights of
      convolutions, whose gradients XLA's partitioner gets wrong where they are sharded, and
      those that are used often.
    """
    if not weights:
        return frozenset()
    block = main_of(module).regions[0].blocks[0]
    search = _Search(block, sharded_results)
    at_start, uses = set(), []
    for place, axes in weights.items():
        found = search.uses_of(block.arguments[place])
        if len(found) > MOST_USES or any(map(_is_convolution, found)):
            at_start.add(place)
        else:
            gathered = f"#sdy.sharding<{mesh}, [{axes}]>"
            uses += [(use, block.arguments[place], gathered) for use in found]
    waited_for = None
    for use, weight, gathered in sorted(uses, key=lambda found: found[0].at):
        latest = search.latest_operand(use)
        _gather(use, weight, waited_for, gathered)
        waited_for = latest or waited_for
    return frozenset(at_start)


class _Search:
    """The search for uses in a block, by what is known of its results."""

    def __init__(self, block: Any, sharded_results: Collection[int]) -> None:
        self._block, self._sharded_results = block, sharded_results
        self._operations = [each.operation for each in block.operations]
        self._at = {operation: at for at, operation in enumerate(self._operations)}
        self._in_parts: dict[tuple[Any, int], bool] = {}

    def uses_of(self, value: Any, made_by: tuple[Any, ...] = ()) -> list[_Use]:
        """Returns the uses of a weight that need it whole: one for each operation in the block."""
        found: dict[int, _Use] = {}
        of_views: list[_Use] = []
        for use in value.uses:
            operation, place = use.owner.operation, use.operand_number
            if self.is_in_parts(operation, place):
                continue
            if operation.name in _VIEWS and operation in self._at:
                of_views += self.uses_of(operation.results[0], (*made_by, operation))
                continue
            own = self._own(operation)
            at = self._at[own]
            found.setdefault(at, _Use(at, own, [], made_by)).operands.append((operation, place))
        return [*found.values(), *of_views]

    def latest_operand(self, use: _Use) -> Any | None:
        """Returns the last operand to be computed of an operation that uses a weight, if any."""
        known = [each for each in use.operation.operands if not isinstance(each.owner, ir.Block)]
        made = [each for each in known if each.owner.name != "stablehlo.constant"]
        return max(made, key=lambda each: self._at.get(each.owner.operation, -1), default=None)

    def is_in_parts(self, operation: Any, place: int) -> bool:
        """Returns whether an operand may stay sharded: whether all that is made of it does."""
        key = operation, place
        if key not in self._in_parts:
            self._in_parts[key] = False  # meanwhile: what is made of itself is in a loop
            self._in_parts[key] = self._found_in_parts(operation, place)
        return self._in_parts[key]

    def _found_in_parts(self, operation: Any, place: int) -> bool:
        if operation.name == "stablehlo.reduce":
            result = ir.RankedTensorType(operation.results[0].type)
            return not result.shape  # a sum of all numbers, such as a norm's
        if operation.name in ("func.return", "stablehlo.return"):
            parent = operation.parent.operation
            if parent == self._block.owner.operation:
                return place in self._sharded_results
            if parent.name not in ("stablehlo.if", "stablehlo.case"):
                return False
            return self._all_in_parts(parent.results[place])
        if operation.name not in _BY_NUMBER:
            return False
        shape = ir.RankedTensorType(operation.operands[place].type).shape
        result = operation.results[0]
        return ir.RankedTensorType(result.type).shape == shape and self._all_in_parts(result)

    def _all_in_parts(self, value: Any) -> bool:
        return all(self.is_in_parts(use.owner.operation, use.operand_number) for use in value.uses)

    def _own(self, operation: Any) -> Any:
        """Returns the operation of the block that an operation is, or is in."""
        while operation not in self._at:
            operation = operation.parent.operation
        return operation


def _gather(use: _Use, weight: Any, waited_for: Any | None, gathered: str) -> None:
    """Gathers a weight for a use, once a value is there that it waits for."""
    with ir.InsertionPoint(use.operation):
        value = weight
        if waited_for is not None:
            both: Any = stablehlo.optimization_barrier([weight, waited_for])
            value = both[0]
        made_by = list(use.made_by)
        while made_by and made_by[0].name == "stablehlo.convert":
            value = _again(made_by.pop(0), value)  # to fewer bytes, it may be
        value = sdy.sharding_constraint(value, ir.Attribute.parse(gathered))
        for operation in made_by:
            value = _again(operation, value)
    for operation, place in use.operands:
        operation.operands[place] = value


def _again(operation: Any, value: Any) -> Any:
    """Returns what an operation makes of another value."""
    clone = operation.clone()
    clone.operands[0] = value
    return clone.results[0]


def _is_convolution(use: _Use) -> bool:
    return any(each.name == "stablehlo.convolution" for each in _operations_in(use.operation))


def _operations_in(operation: Any) -> Iterator[Any]:
    """Yields an operation and those that are in it."""
    yield operation
    for region in operation.regions:
        for block in region.blocks:
            for each in block.operations:
                yield from _operations_in(each.operation)


# Operations that make of a weight what has the same numbers.
_VIEWS = ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert")

# Operations that compute each number of a result of the same number of their operands.
_BY_NUMBER = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "and", "cbrt", "ceil", "clamp", "compare", "convert", "divide"),
        *("exponential", "exponential_minus_one", "floor", "is_finite", "log", "log_plus_one"),
        *("logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "power"),
        *("remainder", "reshape", "round_nearest_afz", "round_nearest_even", "rsqrt", "select"),
        *("sign", "sqrt", "subtract", "tanh", "xor"),
    )
)
