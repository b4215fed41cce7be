"""The part of the strategy that runs programs which are written for one device."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp import keras as tfdp_keras
from tfdp.base import tracebacks
from tfdp.communication.replicas import one_device
from tfdp.partition import Explanation
from tfdp.strategy.programs.partitioned import Partitioned
from tfdp.strategy.programs.program_trace import ProgramOptions


class OneDeviceView(tf.distribute.Strategy):
    """A strategy of which programs that are written for one device see one replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas, which each have a device; 1 in a program of one device."""
        return 1 if one_device.is_traced() else self.extended.num_replicas

    @property
    def rank(self) -> int:
        """The rank of this process in the cluster; 0 where it is alone.

        >>> import tfdp
        >>> tfdp.XLAStrategy().rank
        0
        """
        return self.extended.processes.rank

    @property
    def world_size(self) -> int:
        """The number of processes in the cluster; 1 where this one is alone.

        >>> import tfdp
        >>> tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"]).world_size
        1
        """
        return self.extended.processes.world_size


class OneDevicePrograms(OneDeviceView):
    """A strategy whose replicas run programs that are written for one device together.

    While such a program is traced, the strategy's own methods mean what they mean on one device.
    """

    @tracebacks.filtered
    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Runs `fn` on each replica; in a `partitioned` function, as on one device, once.

        See `tf.distribute.Strategy.run`.
        """
        if one_device.is_traced():
            return fn(*args, **(kwargs or {}))
        return super().run(fn, args, kwargs, options)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduces `value` over the replicas, over `axis` first if it is given; nests leaf by leaf.

        See `tf.distribute.Strategy.reduce`.
        """
        if one_device.is_traced():
            return tf.distribute.get_strategy().reduce(reduce_op, value, axis)
        reduce_one = super().reduce
        return tf.nest.map_structure(lambda leaf: reduce_one(reduce_op, leaf, axis), value)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates `value` over the replicas along `axis`; nests leaf by leaf.

        See `tf.distribute.Strategy.gather`.
        """
        if one_device.is_traced():
            return value
        gather_one = super().gather
        return tf.nest.map_structure(lambda leaf: gather_one(leaf, axis), value)

    def explain(self, model: keras.Model, method: str = "fit") -> Explanation:
        """Returns what a step of a Keras model exchanges between replicas, and why.

        As a text it has 80 columns: each collective with its bytes, what it waits for, and the
        operation and line that asked for it; and what every replica computes on the whole batch. It
        writes itself into a log directory for `tfdp report`: see `tfdp.partition.Explanation`.

        Args:
          model: A model that was built in the scope and has run a step.
          method: Whose step: "fit", "evaluate" or "predict".

        Raises:
          ValueError: The method has run no step yet, or only eager ones.
          ScopeError: The model was made outside of the scope.

        >>> import keras, numpy as np, tfdp
        >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> history = model.fit(np.ones([8, 4]), np.ones([8, 1]), verbose=0)
        >>> [(each.kind, each.size_bytes) for each in strategy.explain(model).collectives]
        [('sum', 28)]
        """
        return tfdp_keras.explain(self, model, method)

    def partitioned(
        self,
        function: Callable[..., Any] | None = None,
        *,
        input_signature: Sequence[Any] | None = None,
        sharded: bool = False,
        jit_compile: bool | None = None,
    ) -> Any:
        """Makes all replicas run a function that is written for one device.

        The function is given whole batches and means what it means on one device: its gradient
        tapes, optimizers, metrics and random draws are those of the whole batch, and
        `num_replicas_in_sync` is 1 in it. It is traced once for batches of any length, as
        `tf.function` traces, and each replica runs a program made of that trace: on its rows of
        each argument, with its own copies of the variables. Where the program needs what other
        replicas have, it is sent: gradients are summed in a few collectives; an operation that
        mixes examples in a way that is not known is computed whole by every replica.

        Args:
          function: A function of tensors, nests of them and other values, or a method, to be
            decorated. None: the decorator is returned.
          input_signature: `tf.TensorSpec`s, as for `tf.function`; then it is traced once. A first
            size that they fix is the batch's length.
          sharded: Whether an output that has a row for each example is returned as
            `tf.distribute.DistributedValues`, the rows of each local replica; else all are whole.
          jit_compile: Whether XLA compiles what lies between the collectives: once for each shape
            of what it is given, in each local replica. Draws are not compiled: their numbers are
            those of the program that is not compiled.

        Returns:
          A callable. It takes whole batches, the same in all processes, or elements of a
          distributed dataset, each of which every process has its own part of.

        Raises:
          PartitionError: When it is called: the program cannot be partitioned. It names the
            operation and the line.
          GradientError: A tape outside goes back through it.
          RankMismatchError: When it is called: some rank was given other batches or values, as
            their first and last rows tell; in a graph an `InvalidArgumentError` says so.

        >>> import tfdp
        >>> strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     slope = tf.Variable(0.0)
        >>> @strategy.partitioned
        ... def step(x, y):
        ...     with tf.GradientTape() as tape:
        ...         loss = tf.reduce_mean((slope * x - y) ** 2)
        ...     slope.assign_sub(0.1 * tape.gradient(loss, slope))
        ...     return loss
        >>> x = tf.constant([1.0, 2.0, 3.0])
        >>> [round(float(step(x, 2 * x)), 4) for _ in range(3)]
        [18.6667, 0.083, 0.0004]
        """
        if function is None:
            return functools.partial(
                self.partitioned,
                input_signature=input_signature,
                sharded=sharded,
                jit_compile=jit_compile,
            )
        options = ProgramOptions(keep_rows=sharded, jit_compile=bool(jit_compile), compares=True)
        return Partitioned(self.extended.programs, function, input_signature, options)
