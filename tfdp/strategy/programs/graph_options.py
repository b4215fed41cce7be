"""How TensorFlow optimizes the graphs of partitioned programs, before their first step.

Grappler rewrites the graph of a function that is called, in which the programs of all local
replicas are inlined. All of its optimizers took three quarters of the time before the first step
of a convolutional network on four replicas, and a step was no faster for them.
"""

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdp.strategy._tensorflow_programs import ConfigProto, FunctionCallOptions, context

# Fuses operations.
ON_CPUS = ("remap",)


def of_program(devices: Sequence[str]) -> FunctionCallOptions:
    """Returns the options that the call of a program is optimized with.

    What was set by `tf.config.optimizer` is kept as it is, and so is all of Grappler on
    accelerators.

    Args:
      devices: The devices of the local replicas.
    """
    usual = context().function_call_options
    config = ConfigProto()
    config.ParseFromString(usual.config_proto_serialized)
    rewrites = config.graph_options.rewrite_options
    kinds = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    if kinds == {"CPU"} and rewrites == type(rewrites)():
        rewrites.optimizers.extend(ON_CPUS)
        rewrites.meta_optimizer_iterations = rewrites.ONE
        rewrites.disable_tfg_optimizer = True
    return FunctionCallOptions(usual.executor_type, config)


@contextlib.contextmanager
def calling_with(options: FunctionCallOptions) -> Iterator[None]:
    """Functions that this thread calls within it are optimized with the options."""
    runtime = context()
    before = runtime.function_call_options
    runtime.function_call_options = options
    try:
        yield
    finally:
        runtime.function_call_options = before
