"""A lowered program, compiled for a mesh of devices by XLA, which partitions it, and run there."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding

from tfdp.tpu._jax import (
    func,
    ir,
    merge_mlir_modules,
    register_lowering,
)
from tfdp.tpu.arrays import placed, placed_in_parts
from tfdp.tpu.layouts import Layouts
from tfdp.tpu.lowering import Lowered, main_of
from tfdp.tpu.variables import DeviceVariable, variable_of

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class Facts(NamedTuple):
    """What is known of a compiled program.

    Attributes:
      seconds: The seconds that it took to trace, to lower and to compile it, by these names.
      collectives: How many collectives of each kind a step of a device has.
      bytes_moved: The bytes of their results.
      custom_calls: The targets of calls of what is no HLO, such as a callback to the host.
      memory_bytes: The bytes of a device that it needs at once: of arguments, results and between.
      weights_copied: How many of the variables that it writes are not written in place.
    """

    seconds: dict[str, float]
    collectives: dict[str, int]
    bytes_moved: int
    custom_calls: tuple[str, ...]
    memory_bytes: int
    weights_copied: int

    def __str__(self) -> str:
        found = ", ".join(f"{count} {kind}" for kind, count in self.collectives.items())
        took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return f"{found or 'no collective'}; {self.memory_bytes / 2**20:.0f} MiB a device; {took}"


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
        self._compiled, self.facts = self._compile()

    def __call__(self, batches: Sequence[Sequence[tf.Tensor]]) -> list[Any]:
        """Runs it and returns its outputs, arrays on the devices; variables are written.

        Args:
          batches: For each step its arguments.
        """
        given = [self._placed(index, each) for index, each in enumerate(zip(*batches, strict=True))]
        written = [self._taken(index) for index in self._written]
        kept = [self._taken(index) for index in self._kept]
        outputs, news = self._compiled(written, kept, given)
        for index, new in zip(self._written, news, strict=True):
            self._variable(index).left(new)
        return list(outputs)

    def _variable(self, index: int) -> DeviceVariable:
        variable = self._variables[index]
        assert variable is not None
        return variable

    def _taken(self, index: int) -> Any:
        if self._variables[index] is None:
            return placed(self._lowered.captured[index].numpy(), self._layouts.replicated)
        variable = self._variable(index)
        sharding = self._layouts.of_variable(variable)
        return variable.taken(lambda value: placed(value, sharding))

    def _placed(self, index: int, tensors: Sequence[tf.Tensor]) -> Any:
        values = [np.asarray(tensor) for tensor in tensors]
        value = values[0] if self._steps == 1 else np.stack(values)
        like = self._lowered.parameters[index]
        shape, axis = self._given(like).shape, int(self._steps != 1)
        sharding = self._sharding_of_argument(like)
        if like.shape:
            rows = shape[axis] // (self._layouts.num_processes if self._in_parts else 1)
            widths = [(0, 0)] * value.ndim
            widths[axis] = (0, rows - value.shape[axis])
            if any(widths[axis]):
                value = np.pad(value, widths, mode="edge")
            if self._in_parts:
                return placed_in_parts(value, sharding, shape)
        return placed(value, sharding)

    def _sharding_of_argument(self, like: jax.ShapeDtypeStruct) -> NamedSharding:
        return self._layouts.of_argument(like.shape, self._steps != 1, self._in_parts)

    def _compile(self) -> tuple[Any, Facts]:
        lowered, layouts = self._lowered, self._layouts
        count, repeated = lowered.num_arguments, self._steps != 1
        arguments, captured = lowered.parameters[:count], lowered.parameters[count:]
        num_outputs = len(lowered.results) - len(lowered.updates)

        def once(written: Sequence[Any], kept: Sequence[Any], batch: Sequence[Any]) -> Any:
            state = dict(zip(self._written, written, strict=True))
            state |= dict(zip(self._kept, kept, strict=True))
            own = [self._own(each, like) for each, like in zip(batch, arguments, strict=True)]
            found = _call(lowered, [*own, *(state[index] for index in range(len(captured)))])
            news = [found[lowered.updates[index]] for index in self._written]
            return news, found[:num_outputs]

        def program(written: Any, kept: Any, batch: Any) -> Any:
            if not repeated:
                news, outputs = once(written, kept, batch)
                return outputs, news
            news, every = jax.lax.scan(lambda state, own: once(state, kept, own), written, batch)
            return [each[-1] for each in every], news

        states = [self._sharding(index) for index in range(len(captured))]
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
            compiled = partitioned.compile()
        seconds = lowered.seconds | {"compile": time.perf_counter() - begun}
        facts = _facts(compiled, seconds, len(self._written))
        logging.getLogger("tfdp").info("A program was compiled for %s: %s.", layouts, facts)
        return compiled, facts

    def _given(self, like: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Returns the shape of an argument as it is given: padded, and of all steps."""
        shape = like.shape and (
            self._layouts.padded(like.shape, self._in_parts),
            *like.shape[1:],
        )
        steps = () if self._steps == 1 else (self._steps,)
        return jax.ShapeDtypeStruct((*steps, *shape), like.dtype)

    def _own(self, given: Any, like: jax.ShapeDtypeStruct) -> Any:
        """Returns an argument's own rows of what is given."""
        if not like.shape:
            return given
        runs = [
            jax.lax.slice_in_dim(given, start, end)
            for start, end in self._layouts.rows(like.shape, self._in_parts)
        ]
        return runs[0] if len(runs) == 1 else jax.numpy.concatenate(runs)

    def _sharding(self, index: int) -> NamedSharding:
        variable = self._variables[index]
        return self._layouts.replicated if variable is None else self._layouts.of_variable(variable)


def _call(lowered: Lowered, arguments: Sequence[Any]) -> list[Any]:
    """Calls a lowered program within a traced function of JAX."""
    results = tuple(jax.core.ShapedArray(each.shape, each.dtype) for each in lowered.results)
    return _primitive().bind(*arguments, module=lowered.module, results=results)


@functools.cache
def _primitive() -> Any:
    """Returns the operation of JAX that calls a module of StableHLO."""
    from jax.extend.core import Primitive

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


def _facts(compiled: Any, seconds: dict[str, float], num_written: int) -> Facts:
    text = compiled.as_text()
    collectives, moved = {}, 0
    for kind in _KINDS:
        found = re.findall(rf"= (.+?) {kind}(?:-start)?\(", text)
        if found:
            collectives[kind] = len(found)
            moved += sum(map(_bytes, found))
    memory = compiled.memory_analysis()
    needed = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", text)
    in_place = len(re.findall(r"-alias\)", aliases.group(1))) if aliases else 0
    targets = tuple(sorted(set(re.findall(r'custom_call_target="([^"]+)"', text))))
    return Facts(seconds, collectives, moved, targets, needed, num_written - in_place)


_SIZES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}


def _bytes(shapes: str) -> int:
    """Returns the bytes of a result, one shape or several, such as "(f32[8,2]{1,0}, s32[])"."""
    total = 0
    for name, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
        size = _SIZES.get(name) or int(re.sub(r"\D", "", name) or 8) // 8
        total += size * int(np.prod([int(each) for each in sizes.split(",") if each]))
    return total
