"""The part of the strategy that runs programs which are written for one device."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp import keras as tfdp_keras
from tfdp.base import tracebacks
from tfdp.communication.replicas import one_device
from tfdp.errors import ScopeError
from tfdp.partition import Explanation
from tfdp.strategy.programs.partitioned_function import Partitioned
from tfdp.strategy.programs.program_trace import ProgramOptions


class OneDeviceView(tf.distribute.Strategy):
    """A strategy of which programs that are written for one device see one replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas, which each have a device; 1 in a program of one device."""
        return 1 if one_device.is_traced() else self.extended.num_replicas

    @property
    def rank(self) -> int:
        """The rank of this process in the cluster; 0 if it is alone.

        >>> import tfdp
        >>> tfdp.XLAStrategy().rank
        0
        """
        return self.extended.processes.cluster_rank

    @property
    def world_size(self) -> int:
        """The number of processes in the cluster; 1 if this one is alone.

        >>> import tfdp
        >>> tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"]).world_size
        1
        """
        return self.extended.processes.cluster_size

    def scope(self) -> Any:
        """Opens the scope in which variables are for all devices.

        See `tf.distribute.Strategy.scope`.

        Raises:
          ScopeError: The scope of another strategy is open.
        """
        current = tf.distribute.get_strategy()
        if tf.distribute.has_strategy() and current is not self:
            raise ScopeError(
                "Only one strategy's scope can be open at a time, but that of another "
                f"{type(current).__name__} is. Leave it first, or build the model in one of them."
            )
        return super().scope()


class OneDevicePrograms(OneDeviceView):
    """A strategy whose replicas run programs that are written for one device together.

    While such a program is traced, the strategy's own methods mean what they mean on one device.
    """

    @tracebacks.filtered
    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Runs `fn` on each replica; in a `partitioned` function once, as on one device.

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
        """Returns the exchanges between replicas in a step of a Keras model, and their reasons.

        As a text of 80 columns it lists each collective, its bytes, the collectives that it waits
        for, the operation and line that asked for it, and the operations that every replica
        computes on the whole batch. `tfdp.partition.Explanation` also writes itself into a log
        directory for `tfdp report`.

        Args:
          model: A model that was built in the scope and has run a step.
          method: The method of the step: "fit", "evaluate" or "predict".

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

        Call the function with whole batches. It computes the same as on one device: its gradient
        tapes, optimizers, metrics and random draws are those of the whole batch, and
        `num_replicas_in_sync` is 1 in it. It is traced once for batches of any length, as by
        `tf.function`. From that trace each replica's program is made, for its rows of each argument
        and its own copies of the variables. If the program needs tensors of other replicas, they
        exchange them: a few collectives sum the gradients. If an operation mixes examples and has
        no rule, the replicas gather its inputs, and each computes it on the whole batch.

        Args:
          function: The function or method to decorate, of tensors, nests of them and other values.
            None: returns the decorator.
          input_signature: `tf.TensorSpec`s, as for `tf.function`; then it is traced only once. A
            fixed first size is the batch's length.
          sharded: Whether to return an output with a row for each example as
            `tf.distribute.DistributedValues`, the rows of each local replica; if not, the replicas
            gather all outputs.
          jit_compile: Whether XLA compiles the parts between the collectives, once for each shape
            of their inputs in each local replica. Draws are not compiled, so their numbers stay the
            same.

        Returns:
          A callable. It takes whole batches, the same in all processes, or elements of a
          distributed dataset, of which each process holds its own shards.

        Raises:
          PartitionError: When it is called: the program cannot be partitioned. The message names
            the operation and the line.
          GradientError: A tape outside of the function differentiates through it.
          RankMismatchError: When it is called: a rank passed other batches or values, as their
            first and last rows show; in a graph it is an `InvalidArgumentError`.

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
