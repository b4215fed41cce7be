"""Breaks each rule of `tfdp.partition.rules` on purpose, and tells which breaks no test notices.

    python tests/partition/breaks.py [family ...] [--list] [--most TESTS] [--tests EXPRESSION]

A break is one small change of a function's syntax tree, such as a sum that is left out, or an axis
that is taken for another one; `changes.KINDS` names them; or of a row of a table of rules. A family
is a module of rules. Each has a process, which imports TensorFlow once and changes no file:

1. Its tests run once, to see that they pass and which lines of the family each of them reaches.
2. For each break the function's code, or the row, is replaced, and tests that reach its line run,
   until one fails: the break is noticed. Cheap ones come first, then those whose cases hypothesis
   draws.

A break may leave replicas waiting for each other. Then the process is ended, which counts as
noticed, and another one goes on.
"""

import argparse
import ast
import collections
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import selectors
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from partition.changes import (  # noqa: E402
    PARTITION,
    RULES,
    breaks_of,
    functions_of,
    path_of,
    rows_of,
    with_notes,
)

TESTS = ROOT / "tests" / "partition" / "rules"

# The tests of families that have none of their own.
TESTED_BY = {
    "rule_table": ["convolutions", "rule_table", "linear_algebra", "strings"],
    "side_effects": ["side_effects", "stateful_random", "control", "lookup_tables"],
    "known_products": ["linear_algebra"],
    "known_slices": ["slicing"],
    "lists": ["lists", "control"],
    "philox": ["random"],
    "random": ["random", "stateful_random"],
    "operand_layouts": ["normalization", "linear_algebra", "convolutions"],
    "scattering": ["scattering", "self_indexing"],
    "variables": ["variables", "sharded_variables"],
}
# What rules share with shape inference.
SHARED = ["known_products", "known_slices"]
# They hold no rules.
NOT_FAMILIES = {"__init__", "registry", "resharding"}

START_SECONDS = 200  # in which a process imports TensorFlow, and collects tests
_LONG = 10  # seconds that a test may take before it is known how many it takes
_CHEAP = 2  # tests that run before those whose cases hypothesis draws
SECONDS = 15  # that the tests of one break may take together

# ---- in a family's process


def codes_in(code, prefix=""):
    """Returns the code of functions and methods of a compiled module, by their names."""
    found = {}
    for each in code.co_consts:
        if isinstance(each, type(code)):
            found[prefix + each.co_name] = each
            found.update(codes_in(each, f"{prefix}{each.co_name}."))
    return found


def function_of(module, name):
    """Returns the function or method of a module whose code can be replaced."""
    owner, _, own = name.rpartition(".")
    found = vars(getattr(module, owner) if owner else module)[own]
    if isinstance(found, property):
        return found.fget
    return getattr(found, "__func__", found)


def noted(lines, line, row):
    """Returns a rule that does what a row of a table does, and notes its line."""

    def write(step):
        lines.add(line)
        return row(step)

    return write


def write_by(write, row):
    """Has the operations of a row of a table be written by another rule."""
    from tfdp.partition.rules.registry import RULES as REGISTERED

    for type_ in row.types.split():
        REGISTERED[type_] = dataclasses.replace(REGISTERED[type_], write=write)


class Breaking:
    """A plugin of pytest that runs the collected tests once, and then for each break.

    Args:
      family: The family.
      told: What an earlier process of the family has found out: the tests' lines, and the numbers
        of the breaks that are left.
    """

    def __init__(self, family, told):
        self.family, self.told = family, told

    def pytest_configure(self):
        """A failing example is enough: it need not be the simplest."""
        import hypothesis

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile(
            "breaks", hypothesis.settings.get_profile("tfdp"), phases=phases, database=None
        )
        hypothesis.settings.load_profile("breaks")

    def pytest_runtestloop(self, session):
        """Runs what there is to run."""
        import importlib

        path = path_of(self.family).relative_to(PARTITION).with_suffix("")
        self.module = importlib.import_module(f"tfdp.partition.{'.'.join(path.parts)}")
        self.items = {item.nodeid: item for item in session.items}
        if "reached" not in self.told:
            self.told["reached"] = self._reached()
        say(reached=self.told["reached"])
        for what, broken in breaks_of(self.family):
            if what.number in self.told["left"]:
                self._try(what, broken())
        say(end=True)
        return True

    def _run(self, item):
        """Runs a test, and returns the report of what failed, or None."""
        from _pytest.runner import runtestprotocol

        usual, _ = self.told.get("reached", {}).get(item.nodeid, (_LONG, None))
        say(wait=8 + 5 * usual)
        for report in runtestprotocol(item, log=False, nextitem=None):
            if report.failed:
                return report
        return None

    def _reached(self):
        """Returns for each test how long it takes, and the statements that it reaches, as lines."""
        source = ast.parse(path_of(self.family).read_text())
        codes = codes_in(compile(with_notes(source), self.module.__file__, "exec"))
        self.module.__reached__ = lines = set()
        right = {}
        for name, _ in functions_of(source):
            function = function_of(self.module, name)
            right[function], function.__code__ = function.__code__, codes[name]
        for index, (_, row) in enumerate(rows_of(source)):
            write_by(noted(lines, row.lineno, self.module.TABLE[index]), self.module.TABLE[index])
        found = {}
        for name, item in self.items.items():
            lines.clear()
            begin = time.perf_counter()
            report = self._run(item)
            if report is not None:
                raise AssertionError(f"{name} fails before anything is broken: {report.longrepr}")
            found[name] = [round(time.perf_counter() - begin, 3), sorted(lines)]
        for function, code in right.items():
            function.__code__ = code
        for row in getattr(self.module, "TABLE", ()):
            write_by(row, row)
        return found

    def _try(self, what, tree):
        """Breaks a rule, and runs tests until one fails."""
        say(begin=what.number)
        noticed, ran, begin = "", 0, time.perf_counter()
        with self._broken(what, tree):
            for name in self._tests_of(what):
                if time.perf_counter() - begin > SECONDS:
                    break
                ran += 1
                report = self._run(self.items[name])
                if report is not None:
                    noticed = name
                    break
        say(done=what.number, noticed=noticed, ran=ran)
        if noticed and "tensorflow.python.framework.errors_impl" in report.longreprtext:
            self._go_on_if_well()

    @contextlib.contextmanager
    def _broken(self, what, tree):
        """Returns a context in which a rule is broken."""
        if isinstance(tree, ast.Expression):
            row = eval(what.function, vars(self.module))
            write_by(eval(compile(tree, self.module.__file__, "eval"), vars(self.module)), row)
            try:
                yield
            finally:
                write_by(row, row)
            return
        function = function_of(self.module, what.function)
        right = function.__code__
        try:
            function.__code__ = codes_in(compile(tree, right.co_filename, "exec"))[what.function]
            yield
        finally:
            function.__code__ = right

    def _tests_of(self, what):
        """Returns tests that reach a break's line: of each function first the cheapest."""
        found = collections.defaultdict(list)
        for name, (seconds, lines) in self.told["reached"].items():
            if what.statement in lines:
                found[name.partition("[")[0]].append((seconds, name))
        ranked = sorted(
            (rank, *each) for every in found.values() for rank, each in enumerate(sorted(every))
        )
        names = [name for *_, name in ranked]
        drawn = [name for name in names if hasattr(self.items[name].obj, "hypothesis")]
        given = [name for name in names if name not in drawn]
        return [*given[:_CHEAP], *drawn, *given[_CHEAP:]][: self.told["most"]]

    def _go_on_if_well(self):
        """Ends the process if a failed collective has left it without collectives."""
        import numpy as np
        import tensorflow as tf
        from partition.check import check

        say(wait=8)
        try:
            check(lambda x: tf.reduce_sum(x, 0), np.ones([5, 2], np.float32), replicas=[3])
        except Exception:
            os._exit(0)


def say(**what):
    """Tells the process that waits."""
    print("\n" + json.dumps(what), file=_out, flush=True)


_out = sys.stdout


def work(family, told):
    """Is a family's process."""
    import pytest

    global _out
    _out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    files = [str(TESTS / f"test_{each}.py") for each in TESTED_BY.get(family, [family])]
    only = ["-k", told["only"]] if told.get("only") else []
    options = ["-q", "-p", "no:cacheprovider", "-o", "timeout=0", "--rootdir", str(ROOT)]
    return pytest.main([*options, *only, *files], plugins=[Breaking(family, told)])


# ---- the process that waits


@dataclasses.dataclass
class Found:
    """What has become of a family's breaks."""

    noticed: dict[int, str] = dataclasses.field(default_factory=dict)
    unnoticed: dict[int, int] = dataclasses.field(default_factory=dict)  # and how many tests ran


def find(family, most=8, numbers=None, only="", progress=None):
    """Breaks a family's rules in processes of its own.

    Args:
      family: The family.
      most: The most tests that run for a break.
      numbers: The numbers of the breaks; None: all.
      only: An expression of pytest's `-k` that chooses tests.
      progress: Is called with the number of each break that is done.
    """
    found = Found()
    left = [
        what.number for what, _ in breaks_of(family) if numbers is None or what.number in numbers
    ]
    told = {"left": left, "most": most, "only": only}
    while told["left"]:
        before = len(told["left"])
        ended = _watched(family, told, found, progress)
        told["left"] = [each for each in left if each not in {**found.noticed, **found.unnoticed}]
        if len(told["left"]) == before:
            raise RuntimeError(f"The tests of {family} cannot be run:\n{ended}")
    return found


def _watched(family, told, found, progress):
    """Starts a process, reads what it says until it ends or is silent, and returns its errors."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "told.json")
        path.write_text(json.dumps(told))
        command = [sys.executable, __file__, "--work", family, str(path)]
        environment = {"TFDP_TESTS_FAST": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
        with open(pathlib.Path(folder, "errors"), "w+") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=ROOT
            )
            number = None
            for said in _lines(process):
                if "reached" in said:
                    told["reached"] = said["reached"]
                elif "begin" in said:
                    number = said["begin"]
                elif "done" in said:
                    number = None
                    if said["noticed"]:
                        found.noticed[said["done"]] = said["noticed"]
                    else:
                        found.unnoticed[said["done"]] = said["ran"]
                    if progress:
                        progress(said["done"])
            process.kill()
            process.wait()
            if number is not None:
                found.noticed[number] = "the process hangs or ends"
            errors.seek(0)
            return errors.read()[-4000:]


def _lines(process):
    """Yields what a process says, until it ends or is silent for longer than it said it may be."""
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    text, wait = b"", START_SECONDS
    while selector.select(wait):
        chunk = os.read(process.stdout.fileno(), 1 << 16)
        if not chunk:
            return
        *lines, text = (text + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                said = json.loads(line)
                wait = said.get("wait", wait)
                yield said


def families():
    """Returns the names of the modules that hold rules."""
    found = {path.stem for path in RULES.glob("*.py")} - NOT_FAMILIES
    return sorted({*found, *SHARED})


def main():
    """Prints, for each family, how many breaks are noticed, and those that are not."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "families", nargs="*", metavar="family", help="such as reductions; none: all"
    )
    parser.add_argument("--list", action="store_true", help="tell the breaks, and try none")
    parser.add_argument("--most", type=int, default=8, help="tests that run for a break at most")
    parser.add_argument("--verbose", action="store_true", help="tell what is noticed, too")
    parser.add_argument("--tests", default="", help="of pytest's -k: run these tests alone")
    parser.add_argument("--only", default="", help="break what holds this text alone")
    options = parser.parse_args()
    survivors = 0
    for family in options.families or families():
        every = [what for what, _ in breaks_of(family) if options.only in str(what)]
        if options.list:
            print(*every, sep="\n")
            continue
        begin = time.perf_counter()
        numbers = {what.number for what in every}
        progress = functools.partial(print, family, file=sys.stderr, flush=True)
        found = find(family, options.most, numbers, options.tests, progress)
        took = time.perf_counter() - begin
        print(f"{family}: {len(found.noticed)} of {len(every)} noticed, {took:.0f} s", flush=True)
        for what in every:
            if options.verbose and what.number in found.noticed:
                print(f"  {what}: noticed by {found.noticed[what.number]}")
            if what.number in found.unnoticed:
                ran = found.unnoticed[what.number]
                print(f"  {what} ({ran} tests)" if ran else f"  {what} (reached by no test)")
        survivors += len(found.unnoticed)
    return 1 if survivors else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        sys.exit(work(sys.argv[2], json.loads(pathlib.Path(sys.argv[3]).read_text())))
    sys.exit(main())
