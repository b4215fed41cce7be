"""Steps of Keras' trainer as one program that all replicas run together.

A step is traced once, as on one device, and each replica runs a program that is derived of it, on
its share of each batch: `strategy.partitioned`. Keras' own code fetches the batches and loops.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.keras_adapter.layers import own_moments
from tfdp.keras_adapter.training import program_recording, same_batches
from tfdp.recording import Recorder
from tfdp.replicas import Cut, cutter_of, exchange_of

# While steps move, they are one program where this is set.
_SWITCH = "TFDP_ONE_PROGRAM"


def is_chosen(strategy: Any) -> bool:
    """Returns whether the steps under a strategy are one program."""
    exchange = exchange_of(strategy)
    plain = not (exchange.compression or exchange.synchronization or exchange.shard)
    return plain and bool(os.environ.get(_SWITCH))


def made(
    original: Callable[..., Any], model: keras.Model, step_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns the function for `fit` and `evaluate`.

    Args:
      original: Keras' `_make_function`.
      model: The model.
      step_function: The step, for one device.
    """
    recorder = Recorder.of(model) if step_function == model.train_step else None
    trainer = _Trainer(model, recorder)
    run = original(trainer, step_function)
    strategy: Any = model.distribute_strategy

    def function(iterator: Any) -> Any:
        with trainer.distribute_strategy.calling():
            return run(_cuts(strategy, iterator))

    function.recorder = recorder  # type: ignore[attr-defined]
    return function


def make_predict_function(original: Callable[..., Any], model: keras.Model) -> None:
    """Makes the function for `predict`.

    Args:
      original: Keras' own `make_predict_function`.
      model: The model, which keeps it.
    """
    trainer = _Trainer(model)
    original(trainer, force=True)
    run = trainer.predict_function
    strategy: Any = model.distribute_strategy

    def function(batches: Any) -> Any:
        with trainer.distribute_strategy.calling():
            return run(list(_cuts(strategy, batches)))

    model.predict_function = function


class _Trainer:
    """A stand-in for the model, of which Keras makes a function for `fit`.

    Its strategy runs a step as one program; every other attribute is the model's.
    """

    # XLA compiles what lies between a program's collectives, not Keras' function around it.
    jit_compile = False

    def __init__(self, model: keras.Model, recorder: Recorder | None = None) -> None:
        self._model = model
        self.predict_function: Any = None
        self.distribute_strategy = _Running(model, recorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Running:
    """What Keras' function takes for the model's strategy: it runs steps, as on one replica."""

    def __init__(self, model: keras.Model, recorder: Recorder | None) -> None:
        self._model, self._recorder = model, recorder
        self._programs: dict[Any, Any] = {}
        self._any_program = self._strategy.partitioned(lambda: None)

    @property
    def _strategy(self) -> Any:
        return self._model.distribute_strategy

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Returns a context for calls of a graph that runs steps."""
        processes = self._strategy.extended.processes
        explained = same_batches.explained(self._strategy)
        with processes.explained(), explained, self._any_program.calling():
            yield

    def run(self, step_function: Callable[..., Any], args: tuple[Any]) -> Any:
        """Runs a step on a batch: a `Cut`, or what is no batch and goes whole to each replica."""
        if step_function not in self._programs:
            compiles = self._model.jit_compile is True
            step = program_recording.traced(self._recorder, _as_documented(step_function))
            program = self._strategy.partitioned(step, jit_compile=compiles)
            if self._recorder is not None:
                program.record(self._recorder)
            self._programs[step_function] = program
        program = self._programs[step_function]
        (data,) = args
        program_recording.called(self._recorder, self._model, data)
        with tf.control_dependencies(same_batches.checked(self._strategy, data)):
            return program.on_shares(data) if isinstance(data, Cut) else program(data)


def _as_documented(step_function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step in which plain BatchNormalization stays each replica's own."""

    @functools.wraps(step_function)
    def step(data: Any) -> Any:
        with own_moments.of_each_replica():
            return step_function(data)

    return step


def _cuts(strategy: Any, iterator: Any) -> Iterable[Any]:
    """Returns an iterable of shares; whole batches, as from `train_on_batch`, are left whole."""
    if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
        return cutter_of(strategy).cuts(iterator)
    return iterator
