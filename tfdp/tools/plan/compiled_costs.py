"""A model's own step on a chip that need not be there, from what XLA compiles it to."""

import dataclasses

import tensorflow as tf

from tfdp.tools.plan import measuring, plan_models
from tfdp.tools.plan.quantities import Chip
from tfdp.tools.prediction.workload import Workload, passes

_WITHOUT = "leave `--chip` out"


def workload(what: str, batch: int, optimizer: str | None, chip: Chip) -> tuple[Workload, str]:
    """Returns what a replica computes in a step of `batch` examples, and where that comes from.

    The whole step is compiled for one device, with the model's own optimizer, or Adam, and a loss
    whose cost no model notices. It takes as long as the chip needs for its operations, or for the
    bytes that they read and write, whichever is longer: no chip is faster, and few programs of many
    small operations are as fast.

    Cost: the step is traced and compiled once, and not run.

    Args:
      what: The model: see `plan_models.build`.
      batch: The examples.
      optimizer: A name of `SLOTS`, for the memory; None: the model's own.
      chip: The chip.

    Raises:
      ModelError: JAX is not installed, or the model cannot be built or compiled.
    """
    try:
        import jax

        import tfdp
    except ImportError as error:
        raise plan_models.ModelError(
            f"`chip` must have JAX, whose compiler tells what a step costs ({error}); do `pip "
            "install 'tfdp[tpu]'`."
        ) from error
    strategy = tfdp.XLAStrategy(jax.devices()[:1])
    with strategy.scope():
        model = plan_models.build(what)
        work = measuring.workload(model, batch, optimizer, timed=False)
        model.compile(getattr(model, "optimizer", None) or "adam", "mse")
    inputs = measuring.specs(model, getattr(model, "inputs", None), batch, _WITHOUT)
    outputs = measuring.specs(model, model.outputs, batch, _WITHOUT)
    targets = tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape), outputs)
    try:
        facts = strategy.compile_ahead(model, (inputs, targets))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise plan_models.ModelError(
            f"`model` must be one that XLA compiles; received {what!r}, which fails "
            f"({type(error).__name__}: {str(error)[:300]}); {_WITHOUT} to time it here."
        ) from error
    seconds = max(
        facts.operations / chip.operations_per_second,
        facts.bytes_accessed / chip.bytes_per_second,
    )
    forward, backward = passes(seconds)
    weights = sum(tensor.size_bytes for tensor in work.tensors)
    kept = weights * (2 + work.slots) + work.frozen_bytes  # with gradients
    work = dataclasses.replace(
        work,
        forward_seconds=forward,
        backward_seconds=backward,
        other_seconds=measuring.OTHER_SECONDS,
        first_seconds=sum(facts.seconds.values()),
        activation_bytes=max(0.0, facts.memory_bytes - kept),
    )
    return work, (
        f"compiled by XLA: {facts.operations / 1e9:.3g} billion operations and "
        f"{facts.bytes_accessed / 1e9:.3g} GB read and written a step"
    )
