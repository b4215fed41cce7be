"""A program traced once, as on one device, and the programs of replicas that are made of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdp.partition import REPLICATED, Batch, Layout, Sharded
from tfdp.strategy._tensorflow_programs import container_of_copy
from tfdp.strategy.programs import captured, tracing
from tfdp.strategy.programs.argument_sharding import ArgumentSharding
from tfdp.strategy.programs.program_call import ProgramCall
from tfdp.strategy.programs.program_options import ProgramOptions

if TYPE_CHECKING:
    from tfdp.strategy.data_parallel import DataParallelStrategy


class ProgramTrace:
    """A program, traced once.

    Args:
      strategy: The strategy.
      function: The program, of flat tensors.
      specs: Their specifications.
      options: What its programs are asked for.
      names: What the tensors are called.

    Attributes:
      source: The traced program.
      specs: The specifications.
    """

    def __init__(
        self,
        strategy: DataParallelStrategy,
        function: Callable[..., Any],
        specs: Sequence[tf.TensorSpec],
        options: ProgramOptions,
        names: Sequence[str] = (),
    ) -> None:
        self._names = names
        self._strategy, self._options = strategy, options
        self.specs = tuple(specs)
        traced = tf.function(function)
        as_on_one_device = tracing.as_on_one_device(
            strategy, moments_are_per_replica=strategy.batch_normalization == "per_replica"
        )
        with tracing.outside_of_graphs(), as_on_one_device:
            self.source = traced.get_concrete_function(*specs)
        self._captured = captured.captured_by(
            self.source.captured_inputs, strategy.extended.worker_devices
        )
        self._hides_states = _hides_states(self.source.graph)
        self._calls: dict[ArgumentSharding, ProgramCall] = {}

    def calls(self, cut: ArgumentSharding) -> ProgramCall:
        """Returns the program for arguments that are cut in one way."""
        if self._hides_states:
            cut = cut._replace(may_be_empty=True)
        if cut not in self._calls:
            with tf.init_scope():
                layouts, batches = self._layouts(cut)
                self._calls[cut] = self.calls_of(layouts, cut, batches)
        return self._calls[cut]

    def calls_of(
        self,
        layouts: Sequence[Layout],
        cut: ArgumentSharding,
        batches: Mapping[int, Batch] = MappingProxyType({}),
    ) -> ProgramCall:
        """Makes a program for arguments in given layouts: see `ProgramCall`."""
        return ProgramCall(
            self._strategy.extended.programs,
            self.source,
            self._captured,
            self.specs,
            layouts,
            batches,
            cut,
            self._options,
            self._names,
        )

    def packed(self, outputs: Sequence[Any]) -> Any:
        """Returns what the function returns, given its tensors, in order."""
        structure, leaves = self._returned
        given = iter(outputs)
        flat = [next(given) if is_tensor else leaf for leaf, is_tensor in leaves]
        return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)

    @functools.cached_property
    def _returned(self) -> tuple[Any, Sequence[tuple[Any, bool]]]:
        structure = self.source.structured_outputs
        leaves = tf.nest.flatten(structure, expand_composites=True)
        return structure, [(leaf, tf.is_tensor(leaf)) for leaf in leaves]

    @property
    def num_replicas(self) -> int:
        """The number of replicas that run its programs."""
        return self._strategy.extended.num_replicas

    def values(self) -> list[tf.Tensor]:
        """Returns the values of the weights that the program reads, for tapes to see."""
        found = []
        for variable in self.source.graph.variables:
            if variable.trainable and (variable.dtype.is_floating or variable.dtype.is_complex):
                reference = getattr(variable.handle, container_of_copy, None)
                container = reference() if callable(reference) else None
                found.append(tf.convert_to_tensor(variable if container is None else container))
        return found

    def takes(self, shapes: Sequence[tf.TensorShape]) -> bool:
        """Returns whether the traced program takes all tensors of which this much is known."""
        pairs = zip(self.specs, shapes, strict=True)
        return all(shape.is_subtype_of(spec.shape) for spec, shape in pairs)

    def _layouts(self, cut: ArgumentSharding) -> tuple[list[Layout], dict[int, Batch]]:
        """Returns the arguments' layouts, and by number the batches that they are cut by."""
        made: dict[int, Batch] = {}
        found: list[Layout] = []
        for spec, number, regular in zip(self.specs, cut.batches, cut.are_regular, strict=True):
            if number is None:
                found.append(REPLICATED)
                continue
            if number not in made:
                made[number] = Batch(f"batch_{number}", spec.shape[0] if regular else None)
            found.append(Sharded(0, made[number]) if regular else REPLICATED)
        for each in cut.irregular:
            entries = Batch(f"entries_{each.first}")
            for index in each.cut:
                found[index] = Sharded(0, entries)
        return found, made


def _hides_states(graph: tf.Graph) -> bool:
    """Returns whether operations draw numbers from states of their own, as those of `tf.random` do.

    Each program has such states of its own, so batches of all lengths must run in one program: in
    another the numbers would begin anew.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for each in definition.library.function for n in each.node_def)]
    return any("seed2" in node.attr for node in nodes)
