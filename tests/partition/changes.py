"""Small changes of rules of `tfdp.partition.rules` that break them, each of a kind that has a name.

`KINDS` holds a function for each kind: of a node of a syntax tree it yields what may stand there
instead.
"""

import ast
import copy
import dataclasses
import functools
import pathlib

PARTITION = pathlib.Path(__file__).parents[2] / "tfdp" / "partition"

# Where families are: what rules share with shape inference is in its modules.
RULES, SHAPES = PARTITION / "rules", PARTITION / "shape_inference"


@dataclasses.dataclass(frozen=True)
class Break:
    """One change of a family's source.

    Attributes:
      family: The family.
      number: Its number among the family's.
      function: The function or method that is changed.
      line: The line that is changed.
      statement: The line where the statement begins that makes a difference.
      kind: The name of one of `KINDS`.
      before: What is changed.
      after: What it becomes.
    """

    family: str
    number: int
    function: str
    line: int
    statement: int
    kind: str
    before: str
    after: str

    def __str__(self):
        where = f"{self.family}.{self.function}:{self.line}"
        return f"{where}: {self.kind}: {self.before} -> {self.after}"


def is_call(node, *names, of=None):
    """Whether a node calls a function or a method of one of the names; a method `of` something."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr in names and (of is None or ast.unparse(function.value) == of)
    return of is None and isinstance(function, ast.Name) and function.id in names


def local(node):
    return ast.Attribute(node, "local", ast.Load())


def collectives(node):
    """A collective is dropped: what a replica holds is taken for the whole, or for its part."""
    if is_call(node, "replicated", "part", of="step") and node.args:
        yield local(node.args[0])
    elif is_call(node, "operand") or (is_call(node, "part", "_whole") and len(node.args) > 1):
        yield local(node.args[1])
    elif is_call(node, "meeting"):
        yield node.args[1]
    elif is_call(node, "on_first"):
        yield ast.parse(
            "step.results(step.emit([step.replicated(each) for each in step.inputs]), REPLICATED)",
            mode="eval",
        ).body


def rows(node):
    """An operand with rows is taken to have none, so that all of it is given to every replica."""
    if is_call(node, "on_rows") and isinstance(node.args[1], (ast.Dict, ast.List)):
        changed = copy.deepcopy(node)
        places = changed.args[1]
        for each in (
            (places.keys, places.values) if isinstance(places, ast.Dict) else (places.elts,)
        ):
            each.pop()
        yield changed


def stand_ins(node):
    """What stands in for examples is counted."""
    if is_call(node, "masked", of="step"):
        yield node.args[0]
    elif is_call(node, "partials"):
        yield ast.parse(f"step.emit({ast.unparse(node.args[2])})", mode="eval").body


def copies(node):
    """A whole value is counted on every replica."""
    if is_call(node, "first_only", of="step"):
        yield node.args[0]


def layouts(node):
    """A result is said to have another layout: a summand is not summed, or a whole value is."""
    if is_call(node, "results", of="step"):
        swaps = {"PARTIAL": "REPLICATED", "REPLICATED": "PARTIAL"}
        for index, argument in enumerate(node.args[1:2], 1):
            if isinstance(argument, ast.Name) and argument.id in swaps:
                changed = copy.deepcopy(node)
                changed.args[index] = ast.Name(swaps[argument.id], ast.Load())
                yield changed


def axes(node):
    """An axis is taken for another one."""
    if isinstance(node, ast.Attribute) and node.attr == "axis" and isinstance(node.ctx, ast.Load):
        yield ast.Constant(0)
    elif is_call(node, "at") and isinstance(node.func, ast.Attribute):
        yield node.func.value
    elif is_call(node, "on_aligned") and isinstance(node.args[-1], ast.Constant):
        yield ast.Call(node.func, [*node.args[:-1], ast.Constant(node.args[-1].value - 1)], [])


def bounds(node):
    """A comparison includes its bound, or no longer does."""
    swaps = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in swaps:
        yield ast.Compare(node.left, [swaps[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def signs(node):
    """What is added is subtracted, or the other way round."""
    swaps = {ast.Add: ast.Sub, ast.Sub: ast.Add}
    texts = (ast.List, ast.ListComp, ast.JoinedStr, ast.Tuple)
    if not isinstance(node, ast.BinOp) or isinstance(node.left, texts):
        return
    if type(node.op) in swaps and not isinstance(node.right, texts):
        yield ast.BinOp(node.left, swaps[type(node.op)](), node.right)


def factors(node):
    """A factor is forgotten, or inner and outer entries are taken for each other."""
    numbers = (ast.Mult, ast.Div, ast.FloorDiv)
    if isinstance(node, ast.BinOp) and isinstance(node.op, numbers):
        if not isinstance(node.left, (ast.List, ast.Tuple)):
            yield node.left
            if isinstance(node.op, ast.Mult) and not isinstance(node.right, ast.List):
                yield node.right
    elif is_call(node, "multiply", "divide", "divided") or is_call(node, "entries_of"):
        if is_call(node, "entries_of"):
            yield ast.parse(f"step.entries({ast.unparse(node.args[1])})", mode="eval").body
        else:
            yield node.args[0]
    elif is_call(node, "shape_with", of="step"):
        yield local(node.args[0])
    elif is_call(node, "Sharded") and len(node.args) == 4:
        axis, batch, inner, outer = node.args
        yield ast.Call(node.func, [axis, batch, outer, inner], [])
    elif is_call(node, "Sharded") and len(node.args) == 3:
        yield ast.Call(node.func, node.args[:2], [])
        yield ast.Call(node.func, [*node.args[:2], ast.Constant(1), node.args[2]], [])
    elif is_call(node, "replace") and ast.unparse(node.func) == "dataclasses.replace":
        yield node.args[0]
        other = {"inner": "outer", "outer": "inner"}
        swapped = [ast.keyword(other.get(each.arg, each.arg), each.value) for each in node.keywords]
        yield ast.Call(node.func, node.args, swapped)
    elif (
        isinstance(node, ast.Attribute)
        and node.attr in ("inner", "outer")
        and not ast.unparse(node.value).endswith("writer")
    ):
        yield ast.Constant(1)


def guards(node):
    """A case that a rule leaves alone is not left alone.

    Guards against None are left out: without them a rule ends with an error, and writes nothing.
    """
    if not isinstance(node, ast.If) or node.orelse:
        return
    if ast.unparse(node.body) not in ("return None", "return False", "return REPLICATED"):
        return
    tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
    if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
        tests = [node.test]
    for index, test in enumerate(tests):
        if ast.unparse(test).endswith("is None"):
            continue
        others = [*tests[:index], *tests[index + 1 :]]
        kept = ast.BoolOp(ast.Or(), others) if len(others) > 1 else (others or [None])[0]
        yield ast.If(kept, node.body, []) if kept is not None else ast.Pass()


def awaited(node):
    """Replicas do not wait for each other."""
    if isinstance(node, ast.Expr) and is_call(node.value, "_meet"):
        yield ast.Pass()


def columns(row):
    """A row of a table says something else: what is forgotten has the table's default."""
    for index, column in enumerate(row.keywords):
        changed = copy.deepcopy(row)
        if column.arg == "operands" and isinstance(column.value, ast.Tuple):
            changed.keywords[index].value.elts.pop()
        elif column.arg == "mixed" and getattr(column.value, "value", 0):
            changed.keywords[index].value.value -= 1
        elif column.arg == "mixed":
            changed.keywords[index].value = ast.Constant(0)
        elif column.arg == "operands":
            continue
        else:
            del changed.keywords[index]
        yield changed
    if not any(column.arg in ("operands", "mixed") for column in row.keywords):
        yield ast.Call(row.func, row.args, [*row.keywords, ast.keyword("mixed", ast.Constant(0))])


KINDS = [
    collectives,
    rows,
    stand_ins,
    copies,
    layouts,
    axes,
    bounds,
    signs,
    factors,
    guards,
    awaited,
]


def rows_of(tree):
    """Yields the calls that make the rows of a module's table, with their names."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TABLE":
            for index, row in enumerate(node.value.elts):
                yield f"TABLE[{index}]", row


def path_of(family):
    """The module of a family."""
    return next(path for path in (RULES / f"{family}.py", SHAPES / f"{family}.py") if path.exists())


def functions_of(tree):
    """Yields the functions and methods of a module, with their names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    yield f"{node.name}.{each.name}", each


class _Replaced(ast.NodeTransformer):
    """A tree in which one node is another one."""

    def __init__(self, old, new):
        self._old, self._new = old, new

    def visit(self, node):
        if node is self._old:
            return ast.copy_location(self._new, node)
        return self.generic_visit(node)


def breaks_of(family):
    """Yields the breaks of a family, each with the module's broken tree."""
    source = path_of(family).read_text()
    number = 0
    seen = set()
    for name, function in functions_of(ast.parse(source)):
        for node, statement in _inside(function):
            for kind in KINDS:
                for changed in kind(node):
                    before, after = ast.unparse(node), ast.unparse(changed)
                    key = name, node.lineno, node.col_offset, before, after
                    if before == after or key in seen:
                        continue
                    seen.add(key)
                    # Without a guard nothing else happens but where it held.
                    begins = node.body[0] if kind is guards else statement
                    lines, told = (node.lineno, begins.lineno), (kind.__name__, before, after)
                    what = Break(family, number, name, *lines, *(" ".join(t.split()) for t in told))
                    yield what, functools.partial(_broken, source, function, node, changed)
                    number += 1
    for name, row in rows_of(ast.parse(source)):
        for changed in columns(row):
            if ast.dump(changed) == ast.dump(row):
                continue
            told = (" ".join(ast.unparse(each).split()) for each in (row, changed))
            what = Break(family, number, name, row.lineno, row.lineno, columns.__name__, *told)
            yield what, functools.partial(ast.fix_missing_locations, ast.Expression(changed))
            number += 1


def _inside(function):
    """Yields what a function's syntax tree holds, each with the statement that it is part of."""
    open_ = [(each, each) for each in reversed(function.body)]
    while open_:
        node, statement = open_.pop()
        if isinstance(node, ast.stmt):
            statement = node
        yield node, statement
        open_ += [(each, statement) for each in reversed([*ast.iter_child_nodes(node)])]


def _broken(source, function, node, changed):
    """Returns the source's tree with one node of a function changed."""
    whole = ast.parse(source)
    memo = {}
    twin = copy.deepcopy(function, memo)
    new = copy.deepcopy(changed)
    twin = _Replaced(memo[id(node)], new).visit(twin)
    for parent in [whole, *(each for each in whole.body if isinstance(each, ast.ClassDef))]:
        for index, each in enumerate(parent.body):
            if isinstance(each, ast.FunctionDef) and each.lineno == function.lineno:
                parent.body[index] = twin
    return ast.fix_missing_locations(whole)


class _Noted(ast.NodeTransformer):
    """A tree whose functions note the line of each statement before it."""

    def __init__(self):
        self._is_inside = False

    def visit_FunctionDef(self, node):
        was, self._is_inside = self._is_inside, True
        self.generic_visit(node)
        self._is_inside = was
        return self._with_note(node)

    def generic_visit(self, node):
        super().generic_visit(node)
        return self._with_note(node)

    def _with_note(self, node):
        if not isinstance(node, ast.stmt) or not self._is_inside:
            return node
        (note,) = ast.parse(f"__reached__.add({node.lineno})").body
        return [ast.copy_location(note, node), node]


def with_notes(tree):
    return ast.fix_missing_locations(_Noted().visit(copy.deepcopy(tree)))
