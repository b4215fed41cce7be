"""A lowered program, compiled for a mesh of devices by XLA, which partitions it, and run there."""

from __future__ import annotations

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

from tfdp import determinism
from tfdp.xla import facts, pending, warnings
from tfdp.xla._jax import func, ir, merge_mlir_modules, register_lowering
from tfdp.xla.arrays import placed, placed_in_parts
from tfdp.xla.constraints import with_constraints
from tfdp.xla.facts import Facts
from tfdp.xla.layouts import Layouts
from tfdp.xla.lowering import Lowered, main_of
from tfdp.xla.variables import MOVING, DeviceVariable, variable_of


class Program:
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
        self._variables = [variable_of(tensor) for tensor in lowered.captured]
        self._written = list(lowered.updates)
        every = range(len(self._variables))
        self._kept = [index for index in every if index not in lowered.updates]
        self._layouts_of_captured = list(map(self._sharding, every))
        self._constants: dict[int, Any] = {}  # captured tensors on the devices
        self._compiled, self.facts = self._compile()

    def __call__(self, batches: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
        """Runs it and returns its outputs, arrays on the devices; variables are written.

        Args:
          batches: For each step its arguments.
        """
        given = [self._placed(index, each) for index, each in enumerate(zip(*batches, strict=True))]
        with MOVING:
            written = [self._taken(index) for index in self._written]
            kept = [self._taken(index) for index in self._kept]
            with pending.call():
                outputs, news = self._compiled(written, kept, given)
            pending.note([*outputs, *news])
            for index, new in zip(self._written, news, strict=True):
                self._variable(index).left(new)
        return list(outputs)

    @property
    def variables(self) -> list[DeviceVariable]:
        """The variables that it captures."""
        return [each for each in self._variables if each is not None]

    def _variable(self, index: int) -> DeviceVariable:
        variable = self._variables[index]
        assert variable is not None
        return variable

    def _taken(self, index: int) -> Any:
        if self._variables[index] is None:
            if index not in self._constants:
                value = self._lowered.captured[index].numpy()
                self._constants[index] = placed(value, self._layouts.replicated)
            return self._constants[index]
        return self._variable(index).taken(self._layouts_of_captured[index])

    def _placed(self, index: int, tensors: Sequence[tf.Tensor]) -> Any:
        values = [np.asarray(tensor) for tensor in tensors]
        value = values[0] if self._steps == 1 else np.stack(values)
        like = self._lowered.parameters[index]
        sharding = self._sharding_of_argument(like)
        if not (self._in_parts and like.shape):
            return placed(value, sharding)
        shape, axis = self._given(like).shape, int(self._steps != 1)
        widths = [(0, 0)] * value.ndim
        widths[axis] = (0, shape[axis] // self._layouts.num_processes - value.shape[axis])
        return placed_in_parts(np.pad(value, widths), sharding, shape)

    def _sharding_of_argument(self, like: jax.ShapeDtypeStruct) -> NamedSharding:
        shape = self._layouts.given(like.shape, self._in_parts)
        return self._layouts.of_argument(shape, self._steps != 1)

    def _compile(self) -> tuple[Any, Facts]:
        lowered, layouts = self._lowered, self._layouts
        count, repeated = lowered.num_arguments, self._steps != 1
        arguments, captured = lowered.parameters[:count], lowered.parameters[count:]
        num_outputs = len(lowered.results) - len(lowered.updates)
        module = with_constraints(lowered.module, layouts.axis, layouts.num_devices)

        def once(written: Sequence[Any], kept: Sequence[Any], batch: Sequence[Any]) -> Any:
            state = dict(zip(self._written, written, strict=True))
            state |= dict(zip(self._kept, kept, strict=True))
            own = [self._own(each, like) for each, like in zip(batch, arguments, strict=True)]
            whole = [self._gathered(index, state[index]) for index in range(len(captured))]
            found = _call(module, lowered.results, [*own, *whole])
            news = [found[lowered.updates[index]] for index in self._written]
            return news, found[:num_outputs]

        def program(written: Any, kept: Any, batch: Any) -> Any:
            if not repeated:
                news, outputs = once(written, kept, batch)
                return outputs, news
            news, every = jax.lax.scan(
                lambda state, own: once(state, kept, own), written, batch, length=self._steps
            )
            return [each[-1] for each in every], news

        states = self._layouts_of_captured
        shardings = (
            [states[index] for index in self._written],
            [states[index] for index in self._kept],
            list(map(self._sharding_of_argument, arguments)),
        )
        shapes = (
            [captured[index] for index in self._written],
            [captured[index] for index in self._kept],
            list(map(self._given, arguments)),
        )
        compiling = jax.jit(
            program,
            donate_argnums=0,
            in_shardings=shardings,
            out_shardings=([layouts.replicated] * num_outputs, shardings[0]),
        )
        begun = time.perf_counter()
        with jax.enable_x64(True):
            partitioned = compiling.trace(*shapes).lower(lowering_platforms=(layouts.platform,))
            compiled = self._fitting(partitioned)
        seconds = lowered.seconds | {"compile": time.perf_counter() - begun}
        found = facts.of(compiled, seconds, len(self._written))
        logging.getLogger("tfdp").info("A program was compiled for %s: %s.", layouts, found)
        return compiled, found

    def _fitting(self, partitioned: Any) -> Any:
        """Returns a program compiled, which must fit into a device's memory."""
        try:
            with warnings.compiling(self._layouts):
                return partitioned.compile(_options(self._layouts.platform))
        except jax.errors.JaxRuntimeError as error:
            said = str(error).split("\n", maxsplit=1)[0]
            if not said.startswith("RESOURCE_EXHAUSTED"):
                raise
            raise MemoryError(
                f"A program must fit into the memory of each device of {self._layouts}, but does "
                f"not ({said}). Use smaller batches, more devices, `mixed_bfloat16`, or "
                'shard="optimizer".'
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
        """Returns a weight whole, as the program computes with it; other values as they are.

        XLA would else cut what is computed of a batch along other axes as well. Where these were
        an image's, gradients of a convolution came out wrong (jaxlib 0.10.2).
        """
        variable = self._variables[index]
        if variable is None or not variable.is_weight:
            return value
        return jax.lax.with_sharding_constraint(value, self._layouts.replicated)

    def _sharding(self, index: int) -> NamedSharding:
        variable = self._variables[index]
        return self._layouts.replicated if variable is None else self._layouts.of_variable(variable)


def _options(platform: str) -> dict[str, Any]:
    """Returns the options of XLA's compiler for devices of a kind.

    On GPUs it sums as threads arrive where it may, such as the gradients of tables.
    """
    asked = platform == "gpu" and determinism.are_operations_deterministic()
    return {"xla_gpu_deterministic_ops": True} if asked else {}


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
