"""Programs that two partitioners train in parts: tfdp's own, and XLA's under `XLAStrategy`.

They are the cases of `benchmarks equivalence`, and those of `tests/foreign`, which nobody wrote for
tfdp. None knows of a partitioner.
"""

import contextlib
import functools
import importlib
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from benchmarks.equivalence_cases import CASES

_TESTS = pathlib.Path(__file__).parents[1] / "tests"
_SEED = 7


def programs() -> dict[str, Callable[[tf.distribute.Strategy], Any]]:
    """Returns every program by its name: a function of a strategy, of what it makes."""
    made: dict[str, Callable[[tf.distribute.Strategy], Any]] = {
        title: functools.partial(_case, run) for title, run in CASES.items()
    }
    for name, program in _foreign().items():
        batches = program.batches
        made[name] = program.run if batches is None else functools.partial(_steps, program)
    return made


def tolerance(name: str) -> float:
    """Returns by how much what a program makes may differ, of the largest value of its kind."""
    program = _foreign().get(name)
    return 0.0 if program is None else float(program.tolerance)


def compiles(name: str) -> bool:
    """Returns whether TensorFlow can compile a program's steps for one device."""
    program = _foreign().get(name)
    return program is None or bool(program.compiles)


def _foreign() -> dict[str, Any]:
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    for path in sorted((_TESTS / "foreign").glob("*.py")):
        if not path.stem.startswith("test_"):
            importlib.import_module(f"foreign.{path.stem}")
    table: Any = importlib.import_module("foreign.table")
    known: dict[str, Any] = table.PROGRAMS
    return known


def _case(run: Callable[[], np.ndarray], strategy: tf.distribute.Strategy) -> np.ndarray:
    with strategy.scope():
        return run()


def _steps(program: Any, strategy: tf.distribute.Strategy) -> Any:
    """Trains on the batches of a program that leaves the training to `tfdp.verify`."""
    with strategy.scope():
        model = program.run()
        # Else one device builds it in a first trace, and runs a second one, which draws otherwise.
        model.optimizer.build(model.trainable_variables)
    rows = [tf.TensorSpec((None, *each.shape[1:]), each.dtype) for each in program.batches[0]]
    data = tf.data.Dataset.from_generator(lambda: program.batches, output_signature=tuple(rows))
    data = data.apply(tf.data.experimental.assert_cardinality(len(program.batches)))
    return model, model.fit(data, verbose=0)


class Outcome:
    """What a program made, in NumPy, and how the models that it trained changed.

    Args:
      made: A nest of models, layers, histories and tensors.
      trained_models: The models that Keras trained, each with its weights before, if it had any.

    Attributes:
      values: A nest of arrays, models and layers as lists of their variables' values.
      changes: For each trained model whose weights are known how training changed each of them.
      unlike: The paths of variables, of those models and of what was made, whose devices, or
        replicas, hold different bits.
      on_devices: The number of variables whose copies were compared.
    """

    def __init__(
        self, made: Any, trained_models: Iterable[tuple[keras.Model, list[np.ndarray]]]
    ) -> None:
        self.changes: list[list[np.ndarray]] = []
        self.unlike: list[str] = []
        self.on_devices = 0
        for model, start in trained_models:
            self._compare_copies([*model.variables, *model.optimizer.variables])
            if start:
                pairs = zip(model.weights, start, strict=True)
                self.changes.append([_numbers(weight) - before for weight, before in pairs])
        for each in tf.nest.flatten(made):
            if isinstance(each, keras.Layer):  # a loop of its own may have trained it
                self._compare_copies(each.variables)
        self.values = _plain(made)

    def _compare_copies(self, variables: Iterable[Any]) -> None:
        for variable in variables:
            copies = _copies(variable)
            self.on_devices += bool(copies)
            if len({copy.tobytes() for copy in copies}) > 1:
                self.unlike.append(variable.path)


def _plain(made: Any) -> Any:
    if isinstance(made, (keras.Layer, keras.optimizers.Optimizer)):
        return [np.asarray(variable) for variable in made.variables]
    if isinstance(made, keras.callbacks.History):
        return made.history
    if isinstance(made, dict):
        return {name: _plain(value) for name, value in made.items()}
    if isinstance(made, (list, tuple)):
        return [_plain(value) for value in made]
    return made.numpy() if isinstance(made, tf.Tensor) else made


def _copies(variable: Any) -> list[np.ndarray]:
    """Returns the copies that devices of JAX, or replicas, hold of a variable."""
    held = variable.value if isinstance(variable, keras.Variable) else variable
    shards = getattr(getattr(held, "_array", None), "addressable_shards", None)
    if shards is not None:
        return [np.asarray(shard.data) for shard in shards]
    if getattr(held, "synchronization", None) == tf.VariableSynchronization.ON_READ:
        return []
    return [np.asarray(copy.numpy()) for copy in getattr(held, "values", ())]


def _numbers(weight: Any) -> np.ndarray:
    value = np.asarray(weight)
    return value.astype("float64") if value.dtype.kind in "fV" else value


def trained(
    run: Callable[[tf.distribute.Strategy], Any],
    strategy: tf.distribute.Strategy | None = None,
    is_compiled: bool = False,
) -> Outcome:
    """Runs a program as in a fresh process.

    Args:
      run: The program.
      strategy: The strategy. None: one device.
      is_compiled: Whether XLA compiles each step as TensorFlow has it do so, as `jit_compile=True`
        asks for; what draws numbers draws others then.
    """
    keras.utils.clear_session(free_memory=False)
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(_SEED)
    with warnings.catch_warnings(), _training_noted() as noted, _compiling(is_compiled):
        warnings.simplefilter("ignore")
        made = run(strategy or tf.distribute.get_strategy())
        return Outcome(made, noted.values())


@contextlib.contextmanager
def _training_noted() -> Iterator[dict[int, tuple[keras.Model, list[np.ndarray]]]]:
    """Notes each model as its first training begins, with its weights, if it is built by then."""
    noted: dict[int, tuple[keras.Model, list[np.ndarray]]] = {}
    usual = {name: getattr(keras.Model, name) for name in ("fit", "train_on_batch")}

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def training(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
            if id(self) not in noted:
                weights = self.weights if self.built else []
                noted[id(self)] = self, [_numbers(weight) for weight in weights]
            return method(self, *args, **kwargs)

        return training

    for name, method in usual.items():
        setattr(keras.Model, name, noting(method))
    try:
        yield noted
    finally:
        for name in usual:
            delattr(keras.Model, name)


@contextlib.contextmanager
def _compiling(is_compiled: bool) -> Iterator[None]:
    """Has models that say nothing of `jit_compile` be compiled, if they can be."""
    if not is_compiled:
        yield
        return
    usual = keras.Model.compile

    @functools.wraps(usual)
    def compile_(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        return usual(self, *args, **{"jit_compile": True, **kwargs})

    with mock.patch.object(keras.Model, "compile", compile_):  # which it only inherits
        yield


def difference(actual: Any, expected: Any) -> float:
    """Returns the largest difference of two nests, over the largest value of its kind.

    A list of arrays is of one kind. What is no number, or an integer, must be equal: else the
    difference is infinite.
    """
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or list(actual) != list(expected):
            return np.inf
        return max((difference(actual[name], expected[name]) for name in expected), default=0.0)
    if isinstance(expected, (list, tuple)):
        if len(actual) != len(expected):
            return np.inf
        if expected and all(isinstance(each, np.ndarray) for each in expected):
            return _of_arrays(actual, expected)
        pairs = zip(actual, expected, strict=True)
        return max((difference(*pair) for pair in pairs), default=0.0)
    if expected is None or isinstance(expected, (str, bytes)):
        return 0.0 if actual == expected else np.inf
    return _of_arrays([np.asarray(actual)], [np.asarray(expected)])


def _of_arrays(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    apart, largest = 0.0, 0.0
    for one, other in zip(actual, expected, strict=True):
        if one.shape != other.shape:
            return np.inf
        if other.dtype.kind not in "fV":
            if not np.array_equal(one, other):
                return np.inf
            continue
        one, other = one.astype("float64"), other.astype("float64")
        if not np.array_equal(np.isfinite(one), np.isfinite(other)):
            return np.inf
        finite = np.isfinite(other)
        apart = max(apart, np.abs(one - other)[finite].max(initial=0.0))
        largest = max(largest, np.abs(other[finite]).max(initial=0.0))
    return float(apart / largest) if apart else 0.0
