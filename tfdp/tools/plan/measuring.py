"""A model's own step, timed on this machine: forward, backward, update, and the first of all."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.determinism import seconds_in_graph
from tfdp.tools.plan.plan_models import ModelError
from tfdp.tools.prediction import SLOTS, GradientTensor, Normalized, Workload

_SECONDS = 3.0  # that the step, and the update, run for after a first run
# What Keras' `fit`, its callbacks and the launch of a step take beside these passes. It is no more:
# the whole step of a small network on one device takes 0.6 ms (README, "Speed").
OTHER_SECONDS = 5e-4
_RATE = "give `--parameters N --examples-per-second R`"


def tensors_of(model: Any, batch: int = 1) -> tuple[GradientTensor, ...]:
    """Returns the gradients of a model, in the order of its variables.

    The work of each is its number of weights times the positions at which they are applied, which
    the shape of the layer's output tells: one for a dense layer, height times width for a
    convolution. Of an embedding's table those rows have gradients that a batch looks up.

    Args:
      model: A Keras model.
      batch: The examples of a replica.
    """
    work: dict[str, float] = {}
    rows: dict[str, int] = {}
    for layer in _layers(model):
        positions = _positions(layer)
        lookup = type(layer).__name__ == "Embedding"  # of as many rows as there are positions
        for variable in layer.trainable_variables:
            size = variable.shape[-1] if lookup else math.prod(variable.shape)
            work[variable.path] = float(size * positions)
            rows[variable.path] = batch * positions if lookup else 0
    return tuple(
        GradientTensor(
            tuple(variable.shape),
            work=work.get(variable.path, float(math.prod(variable.shape))),
            itemsize=tf.as_dtype(variable.dtype).size,
            rows=rows.get(variable.path, 0),
        )
        for variable in model.trainable_variables
    )


def _layers(model: Any) -> Iterator[Any]:
    """Yields the layers of a model, and those of models in it."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _layers(layer)
        else:
            yield layer


def _normalized(model: Any) -> Iterator[Normalized]:
    """Yields the layers that are trained with statistics of a batch."""
    for layer in _layers(model):
        if type(layer).__name__ == "BatchNormalization" and layer.trainable:
            plain = not (layer.synchronized or getattr(layer, "renorm", False))
            yield Normalized(layer.moving_mean.shape[0], plain)


def _positions(layer: Any) -> int:
    """Returns at how many places of an example a layer's weights are applied."""
    try:
        return math.prod(size or 1 for size in layer.output.shape[1:-1])
    except (AttributeError, ValueError):  # it was not called, or has several outputs
        return 1


def workload(model: Any, batch: int, optimizer: str | None, timed: bool = True) -> Workload:
    """Returns what a replica computes in a step of `batch` examples, on random inputs.

    The loss is the mean square of the outputs, whose cost no model notices.

    Cost: the tracing of two graphs, of the passes and of the update; a first run of each, and runs
    for three seconds, or one that takes longer.

    Args:
      model: A Keras model whose inputs have known shapes.
      batch: The examples.
      optimizer: A name of `SLOTS`; None: the model's own.
      timed: Whether the step is timed; if not, the times are 0.

    Raises:
      ModelError: The model has no inputs of known shapes, or its step fails.
    """
    tensors, own = tensors_of(model, batch), getattr(model, "optimizer", None)
    if not model.built:
        raise ModelError(
            f"`model` must be built; received {model.name!r}, which does not know its inputs' "
            f"shapes; call it in the function that returns it, on a `keras.Input(...)`, or {_RATE}."
        )
    if not tensors:
        raise ModelError(
            f"`model` must have weights that are trained; received {model.name!r}, which has none; "
            "set `trainable=True`, or name another model."
        )
    slots = SLOTS[optimizer] if optimizer else _slots(own)
    work = Workload(
        tensors,
        0.0,
        0.0,
        batch=batch,
        slots=slots,
        activation_bytes=4.0 * batch * sum(_elements(layer) for layer in _layers(model)),
        frozen_bytes=float(sum(map(_bytes, model.non_trainable_variables))),
        normalized=tuple(_normalized(model)),
    )
    if not timed:
        return work
    given = specs(model, getattr(model, "inputs", None), batch, _RATE)
    inputs = tf.nest.map_structure(_random, given)
    try:
        return _timed(model, inputs, work, own)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise ModelError(
            f"`model` must take random inputs of its shapes; received {model.name!r}, whose step "
            f"fails ({type(error).__name__}: {str(error)[:300]}); {_RATE}."
        ) from error


def _timed(model: Any, inputs: Any, work: Workload, own: Any) -> Workload:
    import keras

    variables = [variable.value for variable in model.trainable_variables]

    def loss() -> tf.Tensor:
        outputs = tf.nest.flatten(model(inputs, training=True))
        return tf.add_n([tf.reduce_mean(tf.square(tf.cast(o, tf.float32))) for o in outputs])

    @tf.function
    def step() -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            value = loss()
        with tf.device("CPU:0"), tf.control_dependencies([tf.identity(value)]):
            turned = seconds_in_graph()
        gradients = tape.gradient(value, variables)
        return [tf.convert_to_tensor(g) for g in gradients if g is not None], turned

    forward: list[float] = []

    def passes() -> list[tf.Tensor]:
        began = time.time()
        made, turned = step()
        forward.append(max(0.0, float(turned) - began))
        return made

    optimizer = own or keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    gradients = [tf.zeros(variable.shape, variable.dtype) for variable in variables]

    @tf.function
    def update() -> tf.Tensor:
        optimizer.apply(gradients, model.trainable_variables)
        return tf.constant(0.0)

    both = _seconds(passes)
    forward_seconds, both_seconds = _usual(forward), _usual(both)
    return dataclasses.replace(
        work,
        forward_seconds=forward_seconds,
        backward_seconds=max(0.0, both_seconds - forward_seconds),
        update_seconds=_usual(_seconds(update)),
        other_seconds=OTHER_SECONDS,
        first_seconds=max(0.0, both[0] - both_seconds),
    )


def _usual(taken: list[float]) -> float:
    """Returns the median of runs after the first, which traces; and of many after the second."""
    return statistics.median(taken[2:] or taken[1:])


def _seconds(run: Callable[[], Any]) -> list[float]:
    """Returns the seconds of each run: a first one, and those of `_SECONDS`, at most 100 in all."""
    taken: list[float] = []
    while len(taken) < 2 or (sum(taken[1:]) < _SECONDS and len(taken) < 100):
        at = time.perf_counter()
        for value in tf.nest.flatten(run()):
            tf.reshape(value, [-1])[:1].numpy()  # a GPU's work has ended when it is read
            break
        taken.append(time.perf_counter() - at)
    return taken


def specs(model: Any, tensors: Sequence[Any] | None, batch: int, otherwise: str) -> Any:
    """Returns the specifications of a batch of a model's inputs or outputs.

    Args:
      model: The model.
      tensors: Its inputs or outputs; None or empty where it has none that are known.
      batch: The examples.
      otherwise: What to do where a size is not known.

    Raises:
      ModelError: A size is not known, or no tensor.
    """
    if not tensors:
        raise ModelError(
            f"`model` must have inputs of known shapes; received {model.name!r}, a subclass that "
            "is not built; build it in the function, by `model(keras.Input(...))` of the "
            f"functional API, or {otherwise}."
        )
    for tensor in tensors:
        if None in tensor.shape[1:]:
            raise ModelError(
                f"`model` must have inputs of known shapes, and outputs; received {model.name!r} "
                f"with {tuple(tensor.shape)}; give `keras.Input` all sizes, or {otherwise}."
            )
    found = [tf.TensorSpec((batch, *each.shape[1:]), each.dtype) for each in tensors]
    return found[0] if len(found) == 1 else found


def _random(spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype.is_integer:
        return tf.random.uniform(spec.shape, 0, 2, tf.int32)
    return tf.cast(tf.random.normal(spec.shape), spec.dtype)


def _bytes(variable: Any) -> int:
    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)


def _elements(layer: Any) -> int:
    """Returns the numbers of a layer's output for one example."""
    try:
        shapes = [output.shape for output in tf.nest.flatten(layer.output)]
    except (AttributeError, ValueError):
        return 0
    return sum(math.prod(size or 1 for size in shape[1:]) for shape in shapes)


def _slots(optimizer: Any) -> int:
    """Returns the slots of a compiled model's optimizer; those of Adam where there is none."""
    if optimizer is None:
        return SLOTS["adam"]
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    name = type(inner).__name__.lower()
    if name == "sgd" and getattr(inner, "momentum", None):
        return SLOTS["momentum"]
    return SLOTS.get(name, SLOTS["adam"])
