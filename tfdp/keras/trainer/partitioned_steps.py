"""Steps of Keras' trainer as one program that all replicas run together.

A step is traced once, as on one device, and each replica runs a program that is derived of it, on
its share of each batch: `strategy.partitioned`. Keras' own code fetches the batches and loops.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdp.base.recording import Recorder
from tfdp.communication.engines import are_gpus
from tfdp.communication.replicas import BatchShard, Value, sharder_of
from tfdp.compression.exchange import exchange_of
from tfdp.keras import scope_errors, step_recording
from tfdp.keras.divergent_variables import check_round_ended
from tfdp.keras.optimizer import per_replica_updates, update_protocol
from tfdp.keras.trainer import step_agreement
from tfdp.keras.trainer.epoch_iterators import takes_turns

# Where Keras keeps the functions of its methods.
_FUNCTIONS = {
    "fit": "train_function",
    "evaluate": "test_function",
    "predict": "predict_function",
}


def made(
    original: Callable[..., Any], model: keras.Model, step_function: Callable[..., Any]
) -> Callable[..., Any]:
    """Returns the function for `fit` and `evaluate`.

    Args:
      original: Keras' `_make_function`.
      model: The model.
      step_function: The step, for one device.
    """
    trains = step_function == model.train_step
    recorder = Recorder.of(model) if trains else None
    trainer = _Trainer(model, recorder, trains)
    run, steps = original(trainer, step_function), trainer.distribute_strategy
    strategy: Any = model.distribute_strategy

    def function(iterator: Any) -> Any:
        if not trains:
            check_round_ended(model.variables, "evaluate")
        with steps.calling():
            try:
                return run(_shards(strategy, iterator))
            except tf.errors.OutOfRangeError:
                if not (trains and takes_turns(strategy)):  # else the step is no step of anyone's
                    steps.end_data()
                raise

    function.recorder = recorder  # type: ignore[attr-defined]
    function.steps = steps  # type: ignore[attr-defined]
    return function


def make_predict_function(original: Callable[..., Any], model: keras.Model) -> None:
    """Makes the function for `predict`.

    Args:
      original: Keras' own `make_predict_function`.
      model: The model, which keeps it.
    """
    trainer = _Trainer(model)
    original(trainer, force=True)
    steps = trainer.distribute_strategy
    run = trainer.predict_function
    strategy: Any = model.distribute_strategy

    def function(batches: Any) -> Any:
        check_round_ended(model.variables, "predict")
        with steps.calling():
            return run(list(_shards(strategy, batches)))

    function.steps = steps  # type: ignore[attr-defined]
    model.predict_function = function


def explain(strategy: tf.distribute.Strategy, model: keras.Model, method: str) -> Any:
    """Returns what a step of a model exchanges, and why, as it was traced last.

    Args:
      strategy: The strategy.
      model: The model.
      method: "fit", "evaluate" or "predict".

    Raises:
      ValueError: The method was not called yet under the model's strategy, or is another one.
      ScopeError: The model was made outside of the strategy's scope.
    """
    scope_errors.check_asked(strategy, model)
    steps = steps_of(model, method)
    found = None if steps is None else steps.explain()
    if found is None:
        raise ValueError(
            f"A step must have run to be explained, but `{method}` of {model.name!r} has run none. "
            f"Call `model.{method}` with a batch or two first, in a graph."
        )
    return found


def steps_of(model: keras.Model, method: str) -> Any:
    """Returns the step of a method, as it was made last; None: it was not.

    Raises:
      ValueError: The method is another one.
    """
    if method not in _FUNCTIONS:
        raise ValueError(
            f'`method` must be "fit", "evaluate" or "predict", but received {method!r}.'
        )
    return getattr(getattr(model, _FUNCTIONS[method], None), "steps", None)


class _Trainer:
    """A stand-in for the model, of which Keras makes a function for `fit`.

    Its strategy runs a step as one program; every other attribute is the model's.
    """

    # XLA compiles what lies between a program's collectives, not Keras' function around it.
    jit_compile = False

    def __init__(
        self, model: keras.Model, recorder: Recorder | None = None, trains: bool = False
    ) -> None:
        self._model = model
        self.predict_function: Any = None
        self.distribute_strategy = _Running(model, recorder, trains)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class _Running:
    """What Keras' function takes for the model's strategy: it runs steps, as on one replica."""

    def __init__(self, model: keras.Model, recorder: Recorder | None, trains: bool) -> None:
        self._model, self._recorder, self._trains = model, recorder, trains
        self._programs: dict[Any, Any] = {}
        # Keras' function has a loop where it runs several.
        self._steps = model.steps_per_execution
        self._graph_call = sharder_of(self._strategy).graph_calls()

    @property
    def _strategy(self) -> Any:
        return self._model.distribute_strategy

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """Returns a context for calls of a graph that runs steps, in which errors are explained.

        Raises:
          ValueError: `steps_per_execution` was changed since the graph was made.
        """
        if self._model.steps_per_execution != self._steps:
            raise ValueError(
                f"`steps_per_execution` must stay as it was in `compile`, {self._steps}, but is "
                f"{self._model.steps_per_execution} now. Call `compile` with another one."
            )
        with self._strategy.extended.processes.explained(), self._graph_call():
            try:
                yield
            except tf.errors.OutOfRangeError:
                raise
            except tf.errors.OpError as error:
                for program in self._programs.values():
                    error = program.naming_lines(error)
                raise error from None

    def end_data(self) -> None:
        """Does what a step on one device has done when it finds data of unknown length at an end.

        Compiled, it begins when it has a batch. On a GPU the host finds the end, and ends what the
        GPU has not begun.
        """
        on_gpus = are_gpus(self._strategy.extended.worker_devices)
        if self._model.jit_compile is not True and not on_gpus:
            for program in self._programs.values():
                program.write_without_arguments()

    def explain(self) -> Any:
        """Returns what the latest step exchanges; None: none was traced."""
        programs = list(self._programs.values())
        return programs[-1].explain_latest() if programs else None

    def run(self, step_function: Callable[..., Any], args: tuple[Any]) -> Any:
        """Runs a step on a `BatchShard`, or on what is no batch and goes whole to each replica."""
        (data,) = args
        if tf.executing_eagerly():
            step_recording.called(self._recorder, self._model, data)
            step = step_recording.traced(self._recorder, self._of_model(step_function))
            return sharder_of(self._strategy).run_whole(step, data)
        if step_function not in self._programs:
            compiles = self._model.jit_compile is True
            waits = exchange_of(self._strategy).replicas_wait or not self._trains
            own = step_function if waits else _with_own_logs(self._model, step_function)
            step = step_recording.traced(self._recorder, self._of_model(own))
            # Keras leaves steps as they are written, and all that they call.
            step = tf.autograph.experimental.do_not_convert(step)
            program = self._strategy.partitioned(step, jit_compile=compiles)
            program.prepare(self._recorder, may_loop=self._steps != 1)
            self._programs[step_function] = program
        program = self._programs[step_function]
        step_recording.called(self._recorder, self._model, data)
        trained = self._model if self._trains else None
        checks = step_agreement.checked(self._strategy, data, self._recorder, trained)
        with tf.control_dependencies(checks):
            return program.on_shares(data) if isinstance(data, BatchShard) else program(data)

    def _of_model(self, step_function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a step whose updates know which model it trains, if it trains one."""
        if not self._trains:
            return step_function

        @functools.wraps(step_function)
        def step(data: Any) -> Any:
            with update_protocol.tracing(model=self._model):
                return step_function(data)

        return step


def _with_own_logs(model: Any, step_function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step whose logs, if they are the model's metrics, are those of the rank's rows.

    So it does not wait for what other ranks would add to them. Keras reads the metrics again at the
    end of an epoch, then of all ranks.
    """

    @functools.wraps(step_function)
    def step(data: Any) -> Any:
        logs = step_function(data)
        variables = [each for metric in model.metrics for each in metric.variables]
        values = [tf.convert_to_tensor(each.value) for each in variables]
        own = per_replica_updates.call(
            values, lambda _, held, are_own: held, _as_they_are, beside=True
        )
        with keras.StatelessScope(state_mapping=list(zip(variables, own, strict=True))):
            found = model.get_metrics_result()
        is_of_metrics = isinstance(logs, dict) and logs.keys() == found.keys()
        return found if is_of_metrics else logs

    return step


def _as_they_are(values: list[Value]) -> list[Value]:
    return values


def _shards(strategy: Any, iterator: Any) -> Iterable[Any]:
    """Returns an iterable of shares; whole batches, as from `train_on_batch`, are left whole."""
    if isinstance(iterator, (tf.data.Iterator, tf.distribute.DistributedIterator)):
        return sharder_of(strategy).shards(iterator)
    return iterator
