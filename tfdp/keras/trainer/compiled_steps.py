"""Steps of Keras' trainer under a strategy that compiles each as one program of all its devices.

Keras' own code loops over epochs and asks for a batch at a time, or `steps_per_execution` of them.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.communication.replicas import CompilesPrograms
from tfdp.keras import scope_errors
from tfdp.keras._keras import build_of_shapes
from tfdp.keras.trainer.partitioned_steps import steps_of


def made(model: keras.Model, step_function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function for `fit` and `evaluate`, which runs a step or several.

    Args:
      model: The model.
      step_function: The step, for one device.

    Raises:
      ValueError: The model runs eagerly.
      ScopeError: Its optimizer was made outside of its scope.
    """
    program, meter = _program(model, step_function), Meter()

    def function(iterator: Any) -> Any:
        counted = meter.counted(iter(iterator))
        batches, error = _taken(counted, model.steps_per_execution)
        outputs = None
        for _, alike in itertools.groupby(batches, _shapes):
            outputs = program.run([((batch,), {}) for batch in alike])
        if error is not None:
            raise error
        if all(getattr(output, "ndim", 0) == 0 for output in tf.nest.flatten(outputs)):
            return outputs
        return tf.nest.map_structure(_as_logged, outputs)

    function.steps = program  # type: ignore[attr-defined]
    function.meter = meter  # type: ignore[attr-defined]
    return function


def made_to_predict(model: keras.Model) -> Callable[..., Any]:
    """Returns the function for `predict`: of a list of batches, whose rows it returns joined.

    Raises:
      ValueError: The model runs eagerly.
    """
    program = _program(model, model.predict_step)

    def function(batches: Iterable[Any]) -> Any:
        first, *others = (program(_plain(batch)) for batch in batches)
        return tf.nest.map_structure(_joined, first, *others) if others else first

    function.steps = program  # type: ignore[attr-defined]
    return function


def compile_ahead(
    strategy: tf.distribute.Strategy, model: keras.Model, batch: Any, method: str
) -> Any:
    """Compiles the step of a method without running it, and returns what that has shown.

    Args:
      strategy: The strategy.
      model: The model.
      batch: A batch, with `tf.TensorSpec` in place of tensors, or tensors.
      method: "fit", "evaluate" or "predict".

    Raises:
      ValueError: The method is another one, Keras has not compiled the model, or it runs eagerly.
      TypeError: The batch has what is no tensor, array or specification.
      ScopeError: The model was made outside of the strategy's scope.
    """
    scope_errors.check_asked(strategy, model)
    steps_of(model, method)
    if method != "predict" and not model.compiled:
        raise ValueError(
            f"A model must be compiled by Keras before its step is, but {model.name!r} was not. "
            "Call `model.compile` with an optimizer and a loss first."
        )
    batch = _plain(batch)
    _check_batch(batch)
    steps = 1
    if method == "predict":
        model.make_predict_function()
    else:
        build_of_shapes(model, data_batch=batch)
        model.make_train_function() if method == "fit" else model.make_test_function()
        steps = model.steps_per_execution
    return steps_of(model, method).run_ahead([((batch,), {})] * steps)


def _check_batch(batch: Any) -> None:
    """Raises TypeError if a batch has what stands for no tensor."""
    for leaf in tf.nest.flatten(batch):
        is_given = isinstance(leaf, (tf.TypeSpec, np.ndarray, np.generic)) or tf.is_tensor(leaf)
        if leaf is not None and not is_given:
            raise TypeError(
                "A batch must have a `tf.TensorSpec`, a tensor or an array in place of each, such "
                "as `(tf.TensorSpec([64, 32]), tf.TensorSpec([64], tf.int32))`, but has "
                f"{leaf!r}. `dataset.batch(64, drop_remainder=True).element_spec` is such a batch."
            )


def _program(model: keras.Model, step_function: Callable[..., Any]) -> Any:
    if model.run_eagerly or tf.config.functions_run_eagerly():
        raise ValueError(
            "Under XLAStrategy a step is compiled, but the model runs eagerly. Leave "
            "`run_eagerly` out of `compile`; to look into a step, train without a strategy."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        scope_errors.check_optimizer(optimizer, model.distribute_strategy)
    compiler: Any = model.distribute_strategy.extended
    assert isinstance(compiler, CompilesPrograms)
    # Keras leaves steps as they are written, and all that they call.
    return compiler.program(tf.autograph.experimental.do_not_convert(step_function))


def _taken(iterator: Any, count: int) -> tuple[list[Any], Exception | None]:
    """Returns the next batches, `count` of them at most, and an error to raise after their steps.

    It is what the data have raised, or `StopIteration` where they gave no batch.
    """
    batches: list[Any] = []
    iterator = iter(iterator)
    for _ in range(count):
        try:
            batches.append(_plain(next(iterator)))
        except (StopIteration, tf.errors.OutOfRangeError):
            return batches, None if batches else StopIteration()
        except Exception as error:
            return batches, error
    return batches, None


def _joined(*tensors: Any) -> Any:
    """Returns one output of several batches as Keras' own function does."""
    if isinstance(tensors[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(tensors))
    return tf.concat(tensors, 0) if tensors[0].shape.rank else tf.stack(tensors)


def _as_logged(output: Any) -> Any:
    """Returns what a step logs as Keras' own function does; numbers may still be computed."""
    return tf.convert_to_tensor(output) if getattr(output, "ndim", 0) else output


def _plain(batch: Any) -> Any:
    """Returns a batch with None for what is left out."""
    if not any(isinstance(leaf, tf.experimental.Optional) for leaf in tf.nest.flatten(batch)):
        return batch
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )


def _shapes(batch: Any) -> list[Any]:
    return [getattr(leaf, "shape", leaf) for leaf in tf.nest.flatten(batch)]


class Meter:
    """Counts the batches that steps take, which the host hands out one after the other.

    Attributes:
      steps: The number of batches.
      examples: The number of their examples: rows of each batch's first array.
      waited_seconds: How long steps waited for them.

    >>> meter = Meter()
    >>> _ = list(meter.counted(iter([(tf.ones([4, 2]), tf.ones([4])), (tf.ones([3, 2]),)])))
    >>> meter.steps, meter.examples
    (2, 7)
    """

    def __init__(self) -> None:
        self.steps = self.examples = 0
        self.waited_seconds = 0.0

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields batches, which are counted as they are taken."""
        while True:
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.waited_seconds += time.perf_counter() - began
            self.steps += 1
            self.examples += _rows(batch)
            yield batch


def _rows(batch: Any) -> int:
    whole = getattr(batch, "size", None)  # of one of which this process has its own rows
    if isinstance(whole, int):
        return whole
    sizes: Iterator[Any] = (getattr(leaf, "shape", ()) for leaf in tf.nest.flatten(batch))
    return next((int(shape[0]) for shape in sizes if len(shape)), 0)
