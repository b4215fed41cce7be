"""`tfdp.verify`, which trains a program on one device and under a strategy."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdp import cluster
from tfdp.communication.replicas import CompilesPrograms, compiler_of
from tfdp.strategy.data_parallel import DataParallelStrategy
from tfdp.verification.batches import Batches
from tfdp.verification.comparison import Comparison
from tfdp.verification.training_run import TrainedProgram
from tfdp.verification.verification_report import Report


def verify(
    build: Callable[[], keras.Model],
    batches: Any,
    steps: int = 3,
    strategy: tf.distribute.Strategy | None = None,
    tolerance: float = 1e-5,
) -> Report:
    """Trains a program on one device and under a strategy, and reports where they first differ.

    1. Train on one device, from fixed seeds. Read loss, metrics, gradients, weights, layer state
       and optimizer state after each step.
    2. Train the control: the same, but from weights moved by one unit in the last place of their
       compute dtype. Its differences from 1 are rounding, however far that grows.
    3. Train under the strategy, from the same seeds, on the same batches.
    4. A difference between 1 and 3 counts if it exceeds `tolerance` and ten times that of the
       control. If rounding grows, there are two more controls. If the loss or layer state differs,
       that step is trained again, and the outputs of all layers are compared.

    Call it outside of any scope: in a notebook, in a test (`verify(build, batches).check()` raises
    an error for a difference), or on all ranks under `tfdp run`, which then get the same report.
    Afterwards it restores random states, Keras' counts of names and the dtype policy. It verifies
    neither the other arguments of `fit`, such as callbacks, nor the dataset that makes the batches.
    Under `tfdp.XLAStrategy` the one device is the first of its devices, and its step is compiled
    too, because XLA rounds and draws differently from TensorFlow's kernels. Gradients and layers
    cannot be read there; `DataParallelStrategy` verifies a program for both.
    With `jit_compile=True` gradients cannot be read, and the runs that compare layers are trained
    without it. Keras' "auto", which compiles on one GPU and not under a strategy, counts as False
    on both sides. With `shard` there are no whole gradients.

    Cost: it builds, traces and trains the program three times, once more with half precision, and
    up to five times more if something differs. Every rank trains the runs on one device by itself.
    The host's memory holds all weights, gradients and slots of each step, for one device and for
    one other run at a time.

    Args:
      build: Returns a new compiled model in each call, made only of objects from that call.
      batches: A list of batches as `fit` takes them from a dataset, `(x, y)` or `(x, y,
        sample_weight)`, a `tf.data.Dataset`, a pipeline (always its first batches),
        a `PyDataset` or another iterable. Fewer than `steps` are repeated in turn. Short and uneven
        batches show more than even ones.
      steps: Number of steps to train.
      strategy: A `DataParallelStrategy` or, in a process that is alone, an `XLAStrategy`, with two
        replicas or devices at least. None means the cluster that the environment
        describes; else the GPUs of this machine, if there are two, or its logical CPU devices. If
        there is only one and TensorFlow was not used, the CPU is split into two, for the life of
        the process.
      tolerance: The size above which a difference counts, relative to the largest value of all
        weights, of all gradients, of an optimizer's slots of one kind, or else of the same value.

    Returns:
      A `tfdp.verification.Report`, which is true if nothing differs, and prints as a table.

    Raises:
      ValueError: An argument is out of range; `build` does not compile, or returns another model
        the second time; there is only one device; or a scope is open.
      TypeError: `batches`, `strategy` or the result of `build` is of the wrong kind.
      ScopeError: `build` uses variables that were made before the call, outside of a model.

    >>> import keras, numpy as np, tensorflow as tf, tfdp
    >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    >>> class Scaled(keras.layers.Layer):
    ...     def __init__(self, **kwargs):
    ...         super().__init__(**kwargs)
    ...         self.replicas = tf.distribute.get_strategy().num_replicas_in_sync
    ...     def call(self, x):
    ...         return x / self.replicas
    >>> def build(layer=keras.layers.Identity):
    ...     model = keras.Sequential([keras.Input([4]), layer(name="own"), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     return model
    >>> batches = [(np.random.rand(5, 4), np.random.rand(5, 1))]
    >>> report = tfdp.verify(build, batches, strategy=strategy).check()
    >>> tfdp.verify(lambda: build(Scaled), batches, strategy=strategy)
    On 2 replicas the program does not train as on one device: layer `sequential/own` parts first,
    in step 1. ...
    """
    _check_arguments(build, steps, tolerance)
    strategy = _local_strategy() if strategy is None else strategy
    compiler = compiler_of(strategy)
    if compiler is None and not isinstance(strategy, DataParallelStrategy):
        raise TypeError(
            "`strategy` must be a `tfdp.DataParallelStrategy` or a `tfdp.XLAStrategy`, whose steps "
            f"are compared, but received {type(strategy).__name__!r}. Leave it out, or make one; "
            "of another strategy compare a training with one without it."
        )
    if compiler is not None:
        _check_compiler(compiler, strategy.num_replicas_in_sync)
        program = TrainedProgram(build, Batches(batches, steps), reference=compiler.of_one_device())
    elif strategy.num_replicas_in_sync < 2:
        raise ValueError(_ONE_DEVICE)
    else:
        program = TrainedProgram(build, Batches(batches, steps), _device_of_reference(strategy))
    return Comparison(program, strategy, tolerance).report()


_ONE_DEVICE = (
    "`tfdp.verify` must have two replicas at least to compare with one device, but there is one. "
    "Before TensorFlow is used call `tf.config.set_logical_device_configuration(cpu, "
    "[tf.config.LogicalDeviceConfiguration()] * 2)`, where `cpu` is "
    '`tf.config.list_physical_devices("CPU")[0]`; or start the program by `tfdp run -n 2`.'
)


def _check_compiler(compiler: CompilesPrograms, num_devices: int) -> None:
    if num_devices < 2:
        raise ValueError(
            "`tfdp.verify` must have two devices at least to compare with one, but the XLAStrategy "
            "has one. Start the program with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=2, or where "
            "JAX has several GPUs or TPUs."
        )
    if compiler.processes.world_size > 1:
        raise ValueError(
            "`tfdp.verify` must have all devices of an XLAStrategy in its own process, since one "
            f"of them trains alone, but {compiler.processes.world_size} processes share them. Call "
            "it in a process that is alone, such as one started with JAX_PLATFORMS=cpu "
            f"JAX_NUM_CPU_DEVICES={num_devices}."
        )


def _check_arguments(build: Any, steps: Any, tolerance: Any) -> None:
    if not callable(build) or isinstance(build, keras.Model):
        raise TypeError(
            "`build` must be a function that makes and compiles a model, but received "
            f"{type(build).__name__!r}. Use `def build(): ...; return model`."
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"`steps` must be at least 1, but received {steps!r}. Use steps=3.")
    if not tolerance > 0:
        raise ValueError(f"`tolerance` must be above 0, but received {tolerance!r}. Use 1e-5.")
    if tf.distribute.has_strategy():
        raise ValueError(
            "`tfdp.verify` must be called outside of any scope, since it trains on one device "
            "first, but one is open. Call it before `with strategy.scope():`, with "
            "`strategy=strategy`."
        )


def _local_strategy() -> DataParallelStrategy:
    if cluster.detect().world_size > 1 or len(tf.config.list_physical_devices("GPU")) > 1:
        return DataParallelStrategy()
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    if len(tf.config.get_logical_device_configuration(cpu) or []) < 2:
        try:
            two = [tf.config.LogicalDeviceConfiguration()] * 2
            tf.config.set_logical_device_configuration(cpu, two)
        except RuntimeError:
            raise ValueError(_ONE_DEVICE) from None
    count = len(tf.config.list_logical_devices("CPU"))
    return DataParallelStrategy(devices=[f"CPU:{i}" for i in range(count)])


def _device_of_reference(strategy: tf.distribute.Strategy) -> str | None:
    """Returns the CPU if the replicas are on it and TensorFlow would choose a GPU, else None."""
    on_cpu = all(":CPU:" in device for device in strategy.extended.worker_devices)
    return "CPU:0" if on_cpu and tf.config.list_logical_devices("GPU") else None
