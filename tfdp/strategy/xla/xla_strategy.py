"""The strategy for GPUs and TPUs that users make: `tfdp.XLAStrategy`."""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdp import keras as tfdp_keras
from tfdp.base import determinism, tracebacks
from tfdp.cluster import rank_status
from tfdp.communication.replicas import CompilesPrograms, ProcessGroup, one_device
from tfdp.data.feed import AbstractFeed
from tfdp.strategy.programs.one_device_programs import OneDeviceView
from tfdp.strategy.xla import accelerators, auto_layout, jax_distributed, layout_maps, pending
from tfdp.strategy.xla._jax import jax
from tfdp.strategy.xla._tensorflow import OneDeviceExtended, ResourceVariable
from tfdp.strategy.xla.compile_facts import CompileFacts
from tfdp.strategy.xla.compiled import Compiled
from tfdp.strategy.xla.device_arrays import seed_alike
from tfdp.strategy.xla.device_variables import DeviceVariable, adopt
from tfdp.strategy.xla.mesh_sharding import Layouts
from tfdp.strategy.xla.process_dataset import OwnRowsDataset, are_sharded
from tfdp.strategy.xla.runs import Runs
from tfdp.strategy.xla.xla_devices import devices_of

_SHARDS = ("optimizer", "parameters")


class XLAStrategy(OneDeviceView, tf.distribute.OneDeviceStrategy):
    """Trains a Keras model on GPUs or TPUs exactly as one of them given the global batch would.

    The strategy traces a step once, as on one device, for batches of one size. XLA partitions it
    for all chips, and JAX's runtime runs it (`pip install 'tfdp[xla-cuda13]'`, or `'tfdp[tpu]'`).
    Weights stay on the chips between steps, written in place, and come to the host when your code
    reads them. `BatchNormalization` uses the statistics of the whole batch; there is no option.

    A batch of another size is compiled anew, and a warning says so. The host computes operations
    that XLA cannot compile before a step, if they depend only on the batch: strings and lookup
    tables of a model's first layers, and sizes that their values decide. All others are refused by
    name before anything runs, and so are Python callbacks (`tf.numpy_function`) and `run_eagerly`.

    Several processes, started by `tfdp run`, Slurm, MPI, Kubernetes or Ray, run the same script.
    They join in JAX when you make the first strategy, which must come before any use of JAX. From
    a `tfdp.data.pipeline` each process reads the rows of its own chips. Other data are passed whole
    in each process; the processes compare them, and send their own chips their rows. Variables have
    the first process' initial values. Callbacks that write variables must write the same values in
    each process. All processes must save models and have the same callbacks; only the first one
    writes files.

    Args:
      devices: JAX's devices, such as `jax.devices()[:4]`. None: all of them. The name of a
        topology, such as "v5e:2x4" or "h100:8": chips that need not be there, for
        `compile_ahead` alone.
      shard: The variables that are sharded: "optimizer", all that are no weights, such as the
        optimizer's; "parameters", weights as well. A variable needs 65,536 elements, and an axis
        whose size is a multiple of the number of devices, or of the batch axis. None: none.
      synchronization: Must be None; `DataParallelStrategy` alone has others.
      mesh: The sizes of the axes of a mesh of all devices, by their names. Batches are sharded
        along "batch", which must be one of them; neighbours are next to each other along the last
        one. None: all devices are for the batch.
      layout_map: For patterns of weights' paths, as `re.search` takes them, the axis of the mesh
        along which each axis of a weight is sharded, or None. A path that is written out comes
        first, then the first pattern that is found. The optimizer's state follows its weight. A
        `keras.distribution.LayoutMap`, such as KerasHub's, is taken. "auto": layouts along the
        mesh's other axis are derived from each program as it is traced; `explain` says which.

    Raises:
      ImportError: JAX is not installed, or is too old.
      ValueError: An argument is out of its range. When the first step is compiled: a layout does
        not fit a weight, or a pattern of `layout_map` gives no weight a layout.
      ClusterError: Processes cannot join, or differ: see `tfdp.strategy.xla.jax_distributed`.

    >>> import keras, numpy as np, tfdp
    >>> strategy = tfdp.XLAStrategy()  # without a GPU or TPU: the host's CPU
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    >>> history = model.fit(np.ones([8, 4]), np.ones([8, 1]), batch_size=8, verbose=0)
    >>> len(history.history["loss"])
    1

    Weights that are sharded along a second axis of a mesh:

    >>> tfdp.XLAStrategy(
    ...     mesh={"batch": len(jax.devices()), "model": 1},
    ...     layout_map={"dense.*kernel": (None, "model")},
    ... ).describe()["mesh"]["model"]
    1
    """

    def __init__(
        self,
        devices: Sequence[Any] | str | None = None,
        shard: str | None = None,
        *,
        synchronization: None = None,
        mesh: Mapping[str, int] | None = None,
        layout_map: Mapping[str, Any] | str | None = None,
    ) -> None:
        if synchronization is not None:
            raise ValueError(
                "`synchronization` must be None under XLAStrategy, where all devices run one "
                "compiled program with one set of weights, whose sums XLA places, but received "
                f"{synchronization!r}. Use tfdp.DataParallelStrategy, or leave it out."
            )
        if shard is not None and shard not in _SHARDS:
            raise ValueError(
                f"`shard` must be None or one of {_SHARDS}, but received {shard!r}. Leave it out, "
                'or use shard="optimizer".'
            )
        layout_maps.check_given(layout_map, mesh)
        super().__init__("/cpu:0")
        if not isinstance(devices, str):
            jax_distributed.join()
        found = devices_of(devices)
        if found[0].platform == "gpu":
            accelerators.leave_to_jax()
        given = auto_layout.derive(mesh) if isinstance(layout_map, str) else layout_map
        layouts = Layouts(found, shard, mesh, given)
        processes = jax_distributed.group(layouts.num_devices // layouts.num_processes)
        options = {
            **layouts.options(),
            "the seed of `tfdp.enable_determinism`": determinism.chosen_seed(),
        }
        processes.compare("the options of a strategy", options)
        seed_alike()
        self._extended = _Extended(self, layouts, processes)
        self._runs = Runs(self)
        self.adapter_state = tfdp_keras.StrategyState()
        tfdp_keras.install(self)
        rank_status.tell(made=True)
        determinism.note_strategy_made()

    def __repr__(self) -> str:
        return f"XLAStrategy({self.extended.layouts})"

    def describe(self) -> dict[str, Any]:
        """Describes the strategy for `tfdp.write_manifest`, as JSON.

        >>> import tfdp
        >>> sorted(tfdp.XLAStrategy().describe())
        ['devices', 'processes', 'replicas', 'shard']
        """
        layouts = self.extended.layouts
        return {
            "replicas": layouts.num_batch_shards,
            "processes": layouts.num_processes,
            **layouts.describe(),
        }

    @tf.autograph.experimental.do_not_convert
    @tracebacks.filtered
    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Runs `fn` on all devices together, as one device given the whole batch runs it.

        XLA compiles `fn` for each shape of its arguments. It sees one replica:
        `num_replicas_in_sync` is 1, and `all_reduce` returns its argument. Call `run` eagerly, or
        in a `tf.function`, also in its loops and branches; the host runs the code around it.
        docs/xla describes loops of your own.

        Args:
          fn: A function for one device, traced as by `tf.function`.
          args: Its arguments, whole batches.
          kwargs: Its arguments by name.
          options: tf.distribute's, for devices with batches of their own; no effect here.

        Returns:
          The outputs of `fn`, gathered.

        Raises:
          PartitionError: XLA cannot compile an operation. The message names it, and the line.
          TypeError: An argument is a string, an iterator, or a tensor that is not dense.
          RuntimeError: It is called in a `tf.function` with `jit_compile=True`.
          GradientError: A tape outside of `fn` differentiates through it.

        >>> import tfdp
        >>> strategy = tfdp.XLAStrategy()
        >>> def step(x):
        ...     return tf.reduce_mean(x), strategy.num_replicas_in_sync
        >>> @tf.function
        ... def mean(x):
        ...     found, replicas = strategy.run(step, args=(x,))
        ...     return strategy.reduce("SUM", found, axis=None), replicas
        >>> [float(each) for each in mean(tf.constant([1.0, 5.0]))]
        [3.0, 1.0]
        """
        if one_device.is_traced():
            return fn(*args, **(kwargs or {}))
        return self._runs(fn, args, kwargs)

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduces a program's outputs over `axis`, leaf by leaf; each is one value for all devices.

        Args:
          reduce_op: "SUM" or "MEAN", or the `tf.distribute.ReduceOp`.
          value: A nest of tensors.
          axis: The axis; None: the value is returned as it is.

        >>> import tfdp
        >>> float(tfdp.XLAStrategy().reduce("MEAN", tf.constant([1.0, 3.0]), axis=0))
        2.0
        """
        if isinstance(reduce_op, str):
            reduce_op = tf.distribute.ReduceOp(reduce_op.upper())
        if axis is None:
            return value
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        over = tf.reduce_mean if is_mean else tf.reduce_sum
        return tf.nest.map_structure(lambda leaf: over(leaf, axis), value)

    def gather(self, value: Any, axis: int) -> Any:
        """Returns `value`: a program's outputs are gathered already, along any `axis`.

        >>> import tfdp
        >>> tfdp.XLAStrategy().gather(tf.constant([1.0, 3.0]), axis=0).numpy()
        array([1., 3.], dtype=float32)
        """
        return value

    def partitioned(self, function: Callable[..., Any] | None = None) -> Any:
        """Makes all devices run a function that is written for one.

        Call it with whole batches. It computes the same as on one device. XLA compiles it for each
        shape of its arguments.

        Args:
          function: A function of tensors, nests of them and other values, or a method, to be
            decorated. None: the decorator is returned.

        Returns:
          A callable, which takes whole batches and returns tensors.

        Raises:
          PartitionError: When it is called: XLA cannot compile an operation. The message names it,
            and the line.

        >>> import tfdp
        >>> strategy = tfdp.XLAStrategy()
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
            return self.partitioned
        return Compiled(self, function)

    def compile_ahead(self, model: keras.Model, batch: Any, method: str = "fit") -> CompileFacts:
        """Compiles a model's step without running it, for chips that need not be there.

        A step that does not fit into a chip's memory raises an error, as it would on the chip. If
        the devices are there, the method then starts with its program compiled.

        Args:
          model: A model that was made, and compiled by Keras, in the scope.
          batch: A batch as `fit` takes it, such as `(x, y)`, of `tf.TensorSpec` or of tensors, such
            as `dataset.element_spec`, if that knows all sizes.
          method: The method of the step: "fit", "evaluate" or "predict".

        Returns:
          A report of the compiled step: collectives, memory, seconds.

        Raises:
          ValueError: A size is not known, or `method` is another one.
          MemoryError: The step does not fit into a chip's memory.
          PartitionError: XLA cannot compile an operation.
          ScopeError: The model was made outside of the scope.

        >>> import keras, tfdp
        >>> strategy = tfdp.XLAStrategy()  # tfdp.XLAStrategy("v5e:2x4"), where libtpu is installed
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> batch = tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1])
        >>> strategy.compile_ahead(model, batch).weights_copied
        0
        """
        facts: CompileFacts = tfdp_keras.compile_ahead(self, model, batch, method)
        return facts

    def explain(self, model: keras.Model, method: str = "fit") -> CompileFacts:
        """Returns a report of a model's compiled step: seconds, collectives and memory.

        Args:
          model: A model that was built in the scope and has run a step.
          method: The method of the step: "fit", "evaluate" or "predict".

        Raises:
          ValueError: The method has run no step yet.
          ScopeError: The model was made outside of the scope.

        >>> import keras, numpy as np, tfdp
        >>> strategy = tfdp.XLAStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> history = model.fit(np.ones([8, 4]), np.ones([8, 1]), batch_size=8, verbose=0)
        >>> strategy.explain(model).host_transfers
        ()
        """
        return tfdp_keras.explain(self, model, method)


class _Extended(OneDeviceExtended, CompilesPrograms):
    """The strategy's inner part: the host, whose variables' values may be on the devices.

    Attributes:
      layouts: How arrays lie on the devices.
      variables: All variables that were made in the scope.
    """

    def __init__(self, container: XLAStrategy, layouts: Layouts, processes: ProcessGroup) -> None:
        super().__init__(container, "/cpu:0")
        self.layouts, self.num_replicas = layouts, layouts.num_batch_shards
        # By their ids: variables have no hashes.
        self.variables: MutableMapping[int, DeviceVariable] = weakref.WeakValueDictionary()
        self.processes = processes
        # TensorFlow says so of the inner part that a strategy is made with, which this replaces.
        self._retrace_functions_for_each_device = False

    @property
    def should_checkpoint(self) -> bool:
        return bool(jax.process_index() == 0)

    @property
    def should_save_summary(self) -> bool:
        return self.should_checkpoint

    def program(self, function: Callable[..., Any]) -> Compiled:
        return self._container_strategy().partitioned(function)

    def wait(self) -> None:
        pending.wait()

    def of_one_device(self) -> XLAStrategy:
        return XLAStrategy(self.layouts.devices[:1])

    @contextlib.contextmanager
    def at_home(self, variables: Iterable[object]) -> Iterator[None]:
        with contextlib.ExitStack() as kept:
            for variable in variables:
                if isinstance(variable, DeviceVariable):
                    kept.enter_context(variable.at_home())
            yield

    def order_of_sums(self) -> dict[str, object]:
        return self.layouts.options()

    def take_order_of_sums(self, kept: Mapping[str, object]) -> list[str]:
        own = self.order_of_sums()
        return [
            f"{name} were {kept.get(name)!r} and are {own.get(name)!r}"
            for name in own | dict(kept)
            if own.get(name) != kept.get(name)
        ]

    def _create_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> Any:
        if tf.inside_function() and tf.executing_eagerly():
            # The function that is traced would make it later, and assign to it in its graph.
            given = {
                name: value
                for name, value in kwargs.items()
                if value is not None and name != "use_resource"
            }
            variable: tf.Variable = ResourceVariable(**given)
        else:
            variable = super()._create_variable(next_creator, **kwargs)
        made = adopt(variable, is_weight=kwargs.get("trainable") is not False)
        if isinstance(made, DeviceVariable):
            self.variables[id(made)] = made
            if tf.executing_eagerly():
                made.spread()
        return made

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if self.layouts.num_processes > 1 and isinstance(dataset, AbstractFeed):
            return OwnRowsDataset(dataset) if are_sharded(dataset) else dataset
        return dataset  # batches are sharded where they are sent

    def _use_merge_call(self) -> bool:
        return False  # what runs on the host has no replicas that could meet

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        return contextlib.nullcontext()

    def update(
        self, var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        return fn(var, *args, **(kwargs or {}))
