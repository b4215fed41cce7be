"""The order of one function's operations, seen from its collectives.

A number stands for each collective, and a set of collectives is an `int` with a bit for each: one
pass forward and one backward over the operations tell what each of them needs, and what needs it.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfdp.partition._tensorflow import FunctionDef, NodeDef

# The names of the operations that rules write besides the program's own begin so.
OWN = "tfdp/"


class Ordering:
    """One function of a program: what comes before and after its collectives.

    Args:
      definition: The function.
      caller: The function around it, and the operation there that calls it; None: the program's.

    Attributes:
      inputs: For each operation the names of what it takes and waits for.
      own: The collectives that an operation is, or holds in its functions.
      needs: For each operation the collectives that come before it.
      results: For each operation the collectives whose results it needs.
      needed_by: For each operation the collectives that come after it.
    """

    def __init__(self, definition: FunctionDef, caller: tuple[Ordering, NodeDef] | None) -> None:
        self.definition, self.caller = definition, caller
        self.inputs = {
            node.name: [_source(each) for each in node.input] for node in definition.node_def
        }
        self.own: dict[str, int] = {}
        self.needs: dict[str, int] = {}
        self.results: dict[str, int] = {}
        self.needed_by: dict[str, int] = dict.fromkeys(self.inputs, 0)

    def outwards(self) -> Iterator[Ordering]:
        """Yields the function and those around it."""
        function: Ordering | None = self
        while function is not None:
            yield function
            function = None if function.caller is None else function.caller[0]

    def holds(self, node: str, collective: int) -> None:
        """Notes that an operation is a collective, and so what calls the function holds it."""
        self.own[node] = self.own.get(node, 0) | collective
        if self.caller is not None:
            outer, call = self.caller
            outer.holds(call.name, collective)

    def connect(self) -> None:
        """Finds what each operation needs, and is needed by."""
        for node in self.definition.node_def:
            before = results = 0
            for given in node.input:
                source = _source(given)
                if source not in self.inputs:  # an argument
                    continue
                own = self.own.get(source, 0)
                before |= self.needs[source] | own
                # Collectives begin one after the other, whether they need each other or not.
                if not (given.startswith("^") and own and node.name in self.own):
                    results |= self.results[source] | own
            self.needs[node.name], self.results[node.name] = before, results
        for node in reversed(self.definition.node_def):
            after = self.needed_by[node.name] | self.own.get(node.name, 0)
            for source in self.inputs[node.name]:
                if source in self.needed_by:
                    self.needed_by[source] |= after

    def source_of(self, name: str) -> str:
        """Returns the nearest operation of the one-device program that a tensor comes from.

        Where there is none it is an argument.
        """
        seen, open_ = {name}, [name]
        for each in open_:
            if each in self.inputs and not each.startswith(OWN):
                return each
            for source in self.inputs.get(each, ()):
                if source not in seen:
                    seen.add(source)
                    open_.append(source)
        return next((each for each in open_ if not each.startswith(OWN)), name)


def called(node: NodeDef) -> Iterator[str]:
    """Yields the names of the functions that an operation's attributes hold."""
    for key in sorted(node.attr):
        value = node.attr[key]
        if value.WhichOneof("value") == "func":
            yield value.func.name
        elif value.WhichOneof("value") == "list":
            yield from (each.name for each in value.list.func)


def _source(given: str) -> str:
    return given.removeprefix("^").partition(":")[0]
