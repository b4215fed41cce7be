"""A lowered program, compiled for a mesh of devices by XLA, which partitions it, and run there."""

import functools
import logging
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.extend.core import Primitive
from jax.sharding import NamedSharding

from tfdp.base import determinism
from tfdp.strategy.xla import compile_facts, interrupts, pending, precision, warnings
from tfdp.strategy.xla._jax import (
    compiled_for_memory,
    func,
    ir,
    main_of,
    merge_mlir_modules,
    register_lowering,
)
from tfdp.strategy.xla.compile_facts import CompileFacts
from tfdp.strategy.xla.device_arrays import placed, placed_in_parts
from tfdp.strategy.xla.device_variables import MOVING, DeviceVariable, variable_of
from tfdp.strategy.xla.holdings import Holding
from tfdp.strategy.xla.lowering import Lowered
from tfdp.strategy.xla.mesh_sharding import Layouts
from tfdp.strategy.xla.packed_arguments import AT_MOST, Packing


class Executable:
    """A program of one device, which the devices of a mesh run together.

    Args:
      lowered: The program.
      layouts: How arrays lie on the devices.
      steps: How many times it runs in one call, each time on a batch of its own. With several,
        the outputs are the last time's.
      in_parts: Whether each process gives its own rows of each argument, and not all of them.

    Attributes:
      facts: What compiling it has shown.
    """

    def __init__(
        self, lowered: Lowered, layouts: Layouts, steps: int = 1, in_parts: bool = False
    ) -> None:
        self._lowered, self._layouts = lowered, layouts
        self._steps, self._in_parts = steps, in_parts
        every = range(len(lowered.captured))
        # What is captured, in another order: that which is written comes first, as it is packed.
        written = [index for index in every if index in lowered.updates]
        likes = [lowered.parameters[lowered.num_arguments + index] for index in written]
        # What a loop carries is written in place, which it would be taken apart for. On several
        # devices, and on GPUs and TPUs, nobody has measured what joining costs.
        joins = steps == 1 and layouts.num_devices == 1 and layouts.platform == "cpu"
        self._packing = Packing(likes, AT_MOST if joins else 1)
        self._order = [written[place] for place in self._packing.order]
        self._order += [index for index in every if index not in lowered.updates]
        self._num_written = len(written)
        self._tensors = [lowered.captured[index] for index in self._order]
        self._captured = [variable_of(tensor) for tensor in self._tensors]
        self._layouts_of_captured = list(map(self._layout, self._captured))
        arguments = lowered.parameters[: lowered.num_arguments]
        self._layouts_of_arguments = list(map(self._layout_of_argument, arguments))
        self._holding = Holding(len(every), self._packing, layouts.replicated)
        self._compiled, self.facts = self._compile()

    def __call__(self, batches: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
        """Runs it and returns its outputs, arrays on the devices; variables are written.

        Args:
          batches: For each step its arguments.
        """
        stacked = [self._stacked(each) for each in zip(*batches, strict=True)]
        if self._in_parts:
            given = list(map(self._placed_in_parts, range(len(stacked)), stacked))
        elif self._layouts.num_devices == 1:
            given = stacked  # JAX sends them as it calls the program, in C++
        else:
            given = placed(stacked, self._layouts_of_arguments)
        with MOVING:
            holding = self._holding
            if holding.stale:
                self._take_stale()
            with interrupts.held():
                with pending.call(), jax.enable_x64(True):
                    outputs, news = self._compiled(*holding.given(), given)
                pending.note(outputs or news)
                holding.returned(news)
                for place in holding.stale:  # of variables that graphs have captured
                    variable = self._captured[place]
                    if place < self._num_written and variable is not None:
                        variable.left(holding.array(place))
        return list(outputs)

    @property
    def variables(self) -> list[DeviceVariable]:
        """The variables that it captures."""
        return [variable for variable in self._captured if variable is not None]

    def _take_stale(self) -> None:
        """Takes what others have written or taken since the last call, in all processes alike."""
        holding = self._holding
        stale = [(place, self._captured[place]) for place in sorted(holding.stale)]
        for _, variable in stale:
            if variable is not None:
                variable.let_go()  # all do first, so that what else held them is gone from memory
        for place, variable in stale:
            if variable is not None:
                variable.taken(self._layouts_of_captured[place], holding, place)
            else:
                value = self._tensors[place].numpy()
                holding.put(place, placed([value], [self._layouts.replicated])[0])
                holding.stale.discard(place)

    def _stacked(self, tensors: Sequence[tf.Tensor]) -> np.ndarray:
        values = [np.asarray(tensor) for tensor in tensors]
        if self._steps != 1:
            return np.stack(values)
        # A copy: CPU devices read arrays of the host where they lie, after this call, too, and a
        # generator may have written its next batch there: TensorFlow shares its arrays' memory.
        return np.array(values[0]) if self._layouts.platform == "cpu" else values[0]

    def _placed_in_parts(self, index: int, value: np.ndarray) -> Any:
        like, sharding = self._lowered.parameters[index], self._layouts_of_arguments[index]
        if not like.shape:
            return placed([value], [sharding])[0]
        shape, axis = self._given(like).shape, int(self._steps != 1)
        widths = [(0, 0)] * value.ndim
        widths[axis] = (0, shape[axis] // self._layouts.num_processes - value.shape[axis])
        return placed_in_parts(np.pad(value, widths), sharding, shape)

    def _layout_of_argument(self, like: jax.ShapeDtypeStruct) -> NamedSharding:
        shape = self._layouts.given(like.shape, self._in_parts)
        return self._layouts.of_argument(shape, self._steps != 1)

    def _compile(self) -> tuple[Any, CompileFacts]:
        lowered, layouts = self._lowered, self._layouts
        count, repeated = lowered.num_arguments, self._steps != 1
        arguments, captured = lowered.parameters[:count], lowered.parameters[count:]
        num_written = self._num_written
        num_outputs = len(lowered.results) - num_written

        def once(written: Sequence[Any], kept: Sequence[Any], batch: Sequence[Any]) -> Any:
            held = map(self._gathered, self._order, [*written, *kept])
            state = dict(zip(self._order, held, strict=True))
            own = [self._own(each, like) for each, like in zip(batch, arguments, strict=True)]
            whole = [state[index] for index in range(len(captured))]
            found = _call(lowered.module, lowered.results, [*own, *whole])
            news = [found[lowered.updates[index]] for index in self._order[:num_written]]
            return news, list(map(self._whole, found[:num_outputs]))

        packing = self._packing

        def program(packed: Any, kept: Any, batch: Any) -> Any:
            written = packing.unpacked(packed, jax.numpy)
            if repeated:
                news, every = jax.lax.scan(
                    lambda state, own: once(state, kept, own), written, batch, length=self._steps
                )
                outputs = [each[-1] for each in every]
            else:
                news, outputs = once(written, kept, batch)
            return outputs, packing.packed(news, jax.numpy)

        states = self._layouts_of_captured
        in_order = [captured[index] for index in self._order]
        with jax.enable_x64(True):
            pack = functools.partial(packing.packed, numpy=jax.numpy)
            packed = jax.eval_shape(pack, in_order[:num_written])
        shardings = (
            [layouts.replicated] * len(packing.groups) + states[packing.alone.start : num_written],
            states[num_written:],
            self._layouts_of_arguments,
        )
        shapes = packed, in_order[num_written:], list(map(self._given, arguments))
        compiling = jax.jit(
            program,
            donate_argnums=0,
            in_shardings=shardings,
            out_shardings=([layouts.replicated] * num_outputs, shardings[0]),
        )
        begun = time.perf_counter()
        with jax.enable_x64(True):
            partitioned = compiling.trace(*shapes).lower(lowering_platforms=(layouts.language,))
            compiled = self._fitting(partitioned)
        seconds = lowered.seconds | {"compile": time.perf_counter() - begun}
        products = precision.computed_in(lowered.products, layouts.platform)
        at_start = [variable_of(lowered.captured[at - count]) for at in sorted(lowered.at_start)]
        names = tuple(each.name for each in at_start if each is not None)
        found = compile_facts.of(compiled, seconds, len(packed), products, names)
        logging.getLogger("tfdp").info("A program was compiled for %s: %s.", layouts, found)
        return compiled, found._replace(layouts=layouts.reasons(self.variables))

    def _fitting(self, partitioned: Any) -> Any:
        """Returns a program compiled, which must fit into a device's memory."""
        try:
            with warnings.compiling(self._layouts):
                if self._layouts.shard == "parameters" and self._layouts.platform == "cpu":
                    return compiled_for_memory(partitioned)
                return partitioned.compile(_options(self._layouts.platform, self._layouts.shard))
        except jax.errors.JaxRuntimeError as error:
            said = str(error).split("\n", maxsplit=1)[0]
            if not said.startswith("RESOURCE_EXHAUSTED"):
                raise
            ways = ["smaller batches", "`mixed_bfloat16`", *self._layouts.smaller_shards]
            raise MemoryError(
                f"A program must fit into the memory of each device of {self._layouts}, but does "
                f"not ({said}). Use {', '.join(ways)}, or more devices."
            ) from error

    def _given(self, like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Returns the shape of an argument as it is given, of all steps."""
        steps = () if self._steps == 1 else (self._steps,)
        shape = self._layouts.given(like.shape, self._in_parts)
        return jax.ShapeDtypeStruct((*steps, *shape), like.dtype)

    def _own(self, given: Any, like: jax.ShapeDtypeStruct) -> Any:
        """Returns an argument's own rows of what is given."""
        if not like.shape or self._layouts.given(like.shape, self._in_parts) == like.shape:
            return given
        runs = [
            jax.lax.slice_in_dim(given, start, end)
            for start, end in self._layouts.rows(like.shape, self._in_parts)
        ]
        return jax.lax.with_sharding_constraint(
            jax.numpy.concatenate(runs), self._layouts.of_argument(like.shape)
        )

    def _gathered(self, index: int, value: Any) -> Any:
        """Returns a weight that is gathered as the program begins; other values as they are."""
        if self._lowered.num_arguments + index not in self._lowered.at_start:
            return value
        variable = variable_of(self._lowered.captured[index])
        assert variable is not None, "it is a weight"
        return jax.lax.with_sharding_constraint(value, self._layouts.in_a_step(variable))

    def _whole(self, output: Any) -> Any:
        """Returns an output that is whole on each device within the program, too.

        Compiled for TPUs (libtpu 0.0.48) one that is a convolution's would else stay sharded, which
        JAX refuses: "Unexpected XLA sharding override".
        """
        return jax.lax.with_sharding_constraint(output, self._layouts.replicated)

    def _layout(self, variable: DeviceVariable | None) -> NamedSharding:
        return self._layouts.replicated if variable is None else self._layouts.of_variable(variable)


def _options(platform: str, shard: str | None = None) -> dict[str, Any]:
    """Returns the options of XLA's compiler for devices of a kind.

    On GPUs it sums as threads arrive where it may, such as the gradients of tables. For TPUs it
    makes of a gather and its product a loop over the parts of a weight, whose results are whole
    activations in float32, where a product fused with what follows leaves them in bfloat16.
    """
    if platform == "gpu" and determinism.are_operations_deterministic():
        return {"xla_gpu_deterministic_ops": True}
    if platform == "tpu" and shard == "parameters":
        return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 2**20}  # never
    return {}


def _call(module: str, like: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Calls a lowered program, whose results are like these, in a traced function of JAX."""
    results = tuple(jax.core.ShapedArray(each.shape, each.dtype) for each in like)
    return _primitive().bind(*arguments, module=module, results=results)


@functools.cache
def _primitive() -> Any:
    """Returns the operation of JAX that calls a module of StableHLO."""
    primitive = Primitive("tfdp_program")
    primitive.multiple_results = True

    @primitive.def_abstract_eval
    def shapes(*_: Any, module: str, results: tuple[Any, ...]) -> list[Any]:
        return list(results)

    def lower(context: Any, *arguments: Any, module: str, results: tuple[Any, ...]) -> Any:
        parsed = ir.Module.parse(module)
        kinds = list(main_of(parsed).type.results)
        merged = merge_mlir_modules(context.module_context.module, "tfdp_program", parsed)
        return func.CallOp(kinds, ir.FlatSymbolRefAttr.get(merged), arguments).results

    register_lowering(primitive, lower)
    return primitive
