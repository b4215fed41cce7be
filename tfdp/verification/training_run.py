"""The training of one run of a program: built from a fresh state, and read at each step.

The process' seeds, names and dtypes are those of a fresh process, and restored afterwards.
"""

import contextlib
import dataclasses
import inspect
import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.base import hooks
from tfdp.keras import scope_errors
from tfdp.keras._keras import (
    GLOBAL_RANDOM_SEED,
    GLOBAL_SEED_GENERATOR,
    NAME_COUNTS,
    Trainer,
    flatten_layers,
    global_state,
    strategy_of_model,
)
from tfdp.strategy._tensorflow_programs import context
from tfdp.verification import probes, readings
from tfdp.verification.batches import Batches
from tfdp.verification.probes import GradientProbe
from tfdp.verification.readings import Readings
from tfdp.verification.run_differences import numbers

_SEED = 1


@dataclasses.dataclass(frozen=True)
class TrainedProgram:
    """The program that is to be verified.

    Attributes:
      build: Returns a compiled model, a new one each time.
      batches: The batches that the model is trained on.
      device: The device of the runs on one device; None if TensorFlow chooses.
      reference: The strategy of the runs on one device, where a compiler makes its program; None:
        they have none.
    """

    build: Callable[[], keras.Model]
    batches: Batches
    device: str | None = None
    reference: tf.distribute.Strategy | None = None


@dataclasses.dataclass
class Run:
    """The results of a run.

    Attributes:
      model: The trained model.
      steps: The readings before the first step and after each; empty where nothing was built yet.
      offsets: The numbers by which the weights were moved at the start, by path.
      calls: The layers' outputs in the step that was watched; None if none was.
    """

    model: keras.Model
    steps: list[Readings]
    offsets: dict[str, np.ndarray]
    calls: probes.LayerCalls | None = None


def train(
    program: TrainedProgram,
    strategy: tf.distribute.Strategy | None = None,
    *,
    move: int | None = None,
    watch: int | None = None,
) -> Run:
    """Builds the program and trains it.

    Args:
      program: The program.
      strategy: The strategy in whose scope the program is built; None for one device.
      move: The seed by which each weight is moved at the start, up or down by one unit in the last
        place; None if none is.
      watch: The step in which the layers' outputs are kept; XLA compiles no step then.

    Returns:
      The readings of the run, and its model.
    """
    strategy = strategy or program.reference
    scope = contextlib.nullcontext() if strategy is None else strategy.scope()
    device = tf.device(program.device if strategy is None else None)
    with fresh(_SEED), quiet(), device:
        with scope, compiled_if_told():
            model = program.build()
        _check(model, strategy)
        if strategy is None:
            scope_errors.mean_one_device(model)
        model.steps_per_execution = 1
        if watch is not None:
            model.jit_compile = False
        _build_optimizer(model, strategy)
        run = Run(model, [], {})
        if watch is not None:
            run.calls = probes.LayerCalls()
        watching = contextlib.nullcontext() if run.calls is None else run.calls.watching()
        with watching:
            model.fit(
                program.batches.dataset(),
                shuffle=False,
                verbose=0,
                callbacks=[_StateReader(run, move, watch)],
            )
    return run


def compiled_if_told() -> contextlib.AbstractContextManager[None]:
    """Takes Keras' "auto", which lets XLA compile on one GPU, for what it is under a strategy.

    What XLA compiles is rounded otherwise, which would be taken for a difference.
    """
    return hooks.replaced(Trainer, "compile", _compile_if_told)


def _compile_if_told(compile_: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    told = inspect.signature(compile_).bind(*args, **kwargs)
    told.apply_defaults()
    if told.arguments.get("jit_compile") == "auto":
        told.arguments["jit_compile"] = False
    compile_(*told.args, **told.kwargs)


class _StateReader(keras.callbacks.Callback):
    """The callback that reads all parts before the first step and after each."""

    def __init__(self, run: Run, move: int | None, watch: int | None) -> None:
        super().__init__()
        self._run, self._move, self._watch = run, move, watch
        self._gradients = GradientProbe(run.model)

    def on_train_begin(self, logs: Any = None) -> None:
        self._run.steps.append(readings.of_model(self.model) if self.model.built else {})
        self._move_once()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._run.calls is not None and batch + 1 == self._watch:
            self._run.calls.keep = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._run.calls is not None:
            self._run.calls.keep = False
        found = readings.of_logs(logs or {})
        found |= self._gradients.take() | readings.of_model(self.model)
        for path, offset in self._run.offsets.items():
            key = readings.WEIGHTS, path
            found[key] = [numbers(copy) - offset for copy in found[key]]
        self._run.steps.append(found)
        self._move_once()

    def _move_once(self) -> None:
        """Moves the weights once, as soon as they exist, which may be after the first step."""
        if self._move is not None and not self._run.offsets and self.model.built:
            self._run.offsets = _move(self.model, self._move)


def _move(model: keras.Model, seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    epsilons = _epsilons(model)
    offsets = {}
    trained = {id(variable) for variable in model.trainable_variables}
    for variable, path in readings.paths(model.variables):
        if id(variable) not in trained:
            continue
        before = numbers(np.asarray(variable.numpy()))
        real = before.ravel().view(np.float64)  # of a complex number both parts
        exponent = np.floor(np.log2(np.abs(real), where=real != 0, out=np.zeros_like(real)))
        unit = np.where(real == 0, 0.0, np.exp2(exponent) * epsilons[id(variable)])
        moved = real + np.where(generator.random(real.shape) < 0.5, -unit, unit)
        variable.assign(moved.view(before.dtype).reshape(before.shape))
        offsets[path] = numbers(np.asarray(variable.numpy())) - before
    return offsets


def _epsilons(model: keras.Model) -> dict[int, float]:
    """Returns for each variable the distance from 1 to the next number of its compute dtype."""
    found = {}
    for layer in flatten_layers(model):  # inner layers come after their holders, and decide
        dtype = keras.backend.standardize_dtype(layer.compute_dtype)
        epsilon = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52}.get(dtype)
        for variable in layer.trainable_variables:
            found[id(variable)] = epsilon or 2.0**-23
    return found


def _build_optimizer(model: keras.Model, strategy: Any) -> None:
    """Builds the optimizer on one device before the first step, as it is built on replicas.

    In the first step Keras would build it while tracing, where a loss scale would be frozen.
    """
    optimizer = getattr(model, "optimizer", None)
    if strategy is None and optimizer is not None and model.built and not optimizer.built:
        optimizer.build(model.trainable_variables)


def _check(model: Any, strategy: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`build` must return a Keras model, but returned {type(model).__name__!r}. End it "
            "with `return model`."
        )
    if not model.compiled:
        raise ValueError(
            "`build` must return a compiled model, but did not compile it. Call "
            "`model.compile(optimizer, loss)` in it."
        )
    made_in = strategy_of_model(model)
    if made_in is not strategy:
        where = "outside of it" if made_in is None else "in the scope of another strategy"
        raise ValueError(
            "`build` must make a new model each time, in the scope that is open when it is called, "
            f"but its model was made {where}. Make the model within `build`, without a scope of "
            "its own."
            if strategy is not None
            else "`build` must make a new model each time it is called, in no scope of its own: "
            "the first run is on one device. But its model was made in the scope of a strategy."
        )


_OF_KERAS = (NAME_COUNTS, GLOBAL_SEED_GENERATOR, GLOBAL_RANDOM_SEED)


@contextlib.contextmanager
def fresh(seed: int) -> Iterator[None]:
    """Sets all seeds to `seed` and lets Keras count names anew within the context.

    Afterwards random states, counts of names, dtype policy and default dtype are restored. Models
    and layers that were made before do not change.
    """
    of_keras = {name: global_state.get_global_attribute(name) for name in _OF_KERAS}
    python, numpy = random.getstate(), np.random.get_state()
    eager = context()
    seed_before, generator_before = eager._seed, getattr(eager, "_rng", None)
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    global_state.set_global_attribute(NAME_COUNTS, None)
    # The generator of draws without a seed must be made anew; `set_random_seed` of Keras before
    # 3.13 would keep it.
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, None)
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        for name, value in of_keras.items():
            global_state.set_global_attribute(name, value)
        random.setstate(python)
        np.random.set_state(numpy)
        eager._seed, eager._rng = seed_before, generator_before
        keras.config.set_dtype_policy(policy)
        keras.config.set_floatx(floatx)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses TensorFlow's warnings of functions that are traced again and again, as here."""

    def keep(record: logging.LogRecord) -> bool:
        return "retracing" not in record.getMessage()

    logging.getLogger("tensorflow").addFilter(keep)
    try:
        yield
    finally:
        logging.getLogger("tensorflow").removeFilter(keep)
