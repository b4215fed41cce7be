"""A function of one device that all devices of an `XLAStrategy` run together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdp.strategy.programs.arguments import Arguments, plain
from tfdp.strategy.programs.function_outputs import FunctionOutputs, unrecorded
from tfdp.strategy.programs.one_device_function import AbstractOneDeviceFunction
from tfdp.strategy.xla import precision, refusals, warnings
from tfdp.strategy.xla.call_arguments import PARTS, arguments_of, of_whole, placeholder, rows_of
from tfdp.strategy.xla.compile_facts import CompileFacts
from tfdp.strategy.xla.device_arrays import check_alike, fetched
from tfdp.strategy.xla.executables import Executable
from tfdp.strategy.xla.host_parts import Given
from tfdp.strategy.xla.lowering import Traced, lowered, traced
from tfdp.strategy.xla.same_programs import check_same


class _Route(NamedTuple):
    """The way of a call whose arguments are tensors, which later calls of such shapes go at once.

    Attributes:
      program: The program.
      outputs: What it returns.
      places: For each step where its tensors are among those of all calls: see `Plain`.
      is_whole: Whether each process gives whole arguments.
    """

    program: Executable
    outputs: FunctionOutputs
    places: list[list[int]]
    is_whole: bool


class Compiled(AbstractOneDeviceFunction):
    """A function of one device that is compiled for all: once for each shape of its arguments.

    And once for each precision that the settings ask for: see `precision`.

    Args:
      strategy: The strategy.
      function: The function.
    """

    of_arguments = ("ahead",)

    def __init__(self, strategy: tf.distribute.Strategy, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._strategy = strategy
        self._traced: dict[Any, Traced] = {}
        self._programs: dict[Any, tuple[Executable, FunctionOutputs]] = {}
        self._routes: dict[Any, _Route] = {}
        self._latest: Executable | None = None

    def _like(self, function: Callable[..., Any]) -> Compiled:
        return Compiled(self._strategy, function)

    def _called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        values, outputs = self._run([(args, kwargs)])
        flat = unrecorded(
            lambda: list(map(on_host, values)),
            lambda: [*_tensors(args, kwargs), *self._weights()],
        )
        return outputs.packed(flat)

    def run(self, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]) -> Any:
        """Runs calls one after the other, in one program, and returns what the last one does.

        Args:
          calls: The arguments of each, of the same shapes.

        Returns:
          Its outputs, with arrays on the devices in place of dense tensors.
        """
        values, outputs = self._run(calls)
        return outputs.packed(values)

    def _run(
        self, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> tuple[list[Any], FunctionOutputs]:
        """Runs calls and returns the values of the last one's outputs: see `run`."""
        if not tf.executing_eagerly():
            raise RuntimeError(
                "A program of XLAStrategy must be called eagerly, but was called in a graph. "
                "Call it outside of the `tf.function`; what is in it is compiled as a whole."
            )
        self._strategy.extended.layouts.check_there()
        with self._strategy.extended.processes.explained():
            return self._run_together(calls)

    def _run_together(
        self, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> tuple[list[Any], FunctionOutputs]:
        found = plain(calls, PARTS)
        key = None if found is None else (found.key, precision.asked())
        route = None if key is None else self._routes.get(key)
        if found is None or route is None:
            return self._run_first(calls, [] if found is None else found.tensors, key)
        self._latest = route.program
        given = [[found.tensors[place] for place in places] for places in route.places]
        if route.is_whole:
            check_alike([tensor for each in given for tensor in each])
        return route.program(given), route.outputs

    def _run_first(
        self,
        calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]],
        tensors: Sequence[tf.Tensor],
        key: Any,
    ) -> tuple[list[Any], FunctionOutputs]:
        """Runs calls, and notes the way of later ones that are like them.

        Args:
          calls: See `run`.
          tensors: All that they are given, one after the other, if they have a key.
          key: What later calls are known by; None: they have to be looked at, each time.
        """
        rows = [rows_of(*call) for call in calls]
        every = [arguments_of(*own) for _, own in rows]
        whole, _ = rows[0]
        program = self._trace(every[0], whole)
        own = [[parts[0] for parts in each.parts] for each in every]
        given = list(map(program.given, own))
        if whole is None:
            check_alike([tensor for each in given for tensor in each.tensors])
        runs = list(_in_runs(given))
        for alike in runs:
            self._latest, outputs = self._program(every[0], program, alike, whole)
            found = self._latest([each.tensors for each in alike])
        # A tensor that was given twice says nothing of where two others would go.
        are_known = program.host is None and len({*map(id, tensors)}) == len(tensors)
        if key is not None and are_known and len(runs) == 1:
            all_places = {id(tensor): place for place, tensor in enumerate(tensors)}
            places = [[all_places[id(tensor)] for tensor in each] for each in own]
            assert self._latest is not None
            self._routes[key] = _Route(self._latest, outputs, places, whole is None)
        return found, outputs

    @tf.autograph.experimental.do_not_convert
    def ahead(self, *args: Any, **kwargs: Any) -> CompileFacts:
        """Compiles the function without running it, and returns what that has shown.

        Args:
          *args: The arguments of a call, with `tf.TensorSpec` in place of tensors, or tensors.
          **kwargs: Those by name.

        Raises:
          ValueError: A size is not known.
          MemoryError: It does not fit into a device's memory.
        """
        return self.run_ahead([(args, kwargs)])

    def run_ahead(self, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]) -> CompileFacts:
        """Compiles what `run` would run, and returns what that has shown."""
        with tf.Graph().as_default():  # whose placeholders have shapes, and no values
            arguments = arguments_of(*tf.nest.map_structure(placeholder, tuple(calls[0])))
        program = self._trace(arguments)
        given = _made_up(program, arguments.fixed())
        self._latest, _ = self._program(arguments, program, [given] * len(calls))
        return self._latest.facts

    def explain(self) -> CompileFacts | None:
        """Returns what is known of the program of the latest call; None: it was not called yet."""
        return None if self._latest is None else self._latest.facts

    def experimental_get_tracing_count(self) -> int:
        """Returns how often the function was traced, as a `tf.function` does."""
        return len(self._programs)

    def _weights(self) -> list[tf.Tensor]:
        """Returns the values of the trainable variables of the latest call's program."""
        assert self._latest is not None
        return [each.value() for each in self._latest.variables if each.trainable]

    def _trace(self, arguments: Arguments, whole: int | None = None) -> Traced:
        """Returns the function as it is traced for arguments of such shapes.

        Args:
          arguments: The arguments.
          whole: The number of rows of the whole batch, if the arguments are rows of it.
        """
        specs = [of_whole(spec, whole) for spec in arguments.fixed()]
        key = arguments.key, tuple(specs)
        if key not in self._traced:
            function = arguments.function(self.python_function)
            self._traced[key] = traced(self._strategy, function, specs)
        found = self._traced[key]
        if found.host is not None:
            if whole is not None:
                raise refusals.of_own_rows(found.host.places)
            warnings.computed_on_host(self._strategy, found.host.places)
        return found

    def _program(
        self,
        arguments: Arguments,
        traced: Traced,
        given: Sequence[Given],
        whole: int | None = None,
    ) -> tuple[Executable, FunctionOutputs]:
        """Returns the program for what devices are given, and its outputs.

        Args:
          arguments: The arguments.
          traced: The function, traced for them.
          given: What the devices are given in each step of a call, of the same sizes.
          whole: See `_trace`.
        """
        specs = [of_whole(spec, whole) for spec in given[0].specs]
        level, sizes = precision.asked(), given[0].sizes
        key = arguments.key, tuple(specs), len(given), whole is not None, sizes, level
        if key not in self._programs:
            extended = self._strategy.extended
            name = getattr(self.python_function, "__name__", "A function")
            former = [(each, count) for _, each, count, *_, of in self._programs if of == level]
            if former:
                warnings.compiled_once_more(self._strategy, name, specs, len(given), former)
            warnings.computed_whole(specs, extended.layouts)
            program = lowered(traced, specs, sizes, level)
            check_same(extended.processes, name, program)
            made = Executable(program, extended.layouts, len(given), whole is not None)
            self._programs[key] = made, FunctionOutputs(program.structure)
        return self._programs[key]


def _in_runs(given: Sequence[Given]) -> Iterator[list[Given]]:
    """Yields together what successive steps are given of the same sizes."""
    for _, alike in itertools.groupby(given, lambda each: (each.specs, each.sizes)):
        yield list(alike)


def _made_up(program: Traced, specs: Sequence[tf.TensorSpec]) -> Given:
    """Returns what devices are given of arguments that are not there yet.

    The host computes its part of two made-up batches, which must give the same sizes.

    Args:
      program: The program.
      specs: Its arguments.

    Raises:
      ValueError: A batch decides a size, or the host takes no made-up one.
    """
    if program.host is None:
        return Given(specs)
    found = []
    for text, number in (("", 0), ("a b c", 1)):
        values = [text if spec.dtype == tf.string else number for spec in specs]
        pairs = zip(specs, values, strict=True)
        with tf.init_scope():  # a graph may be traced
            made_up = [tf.fill(spec.shape, tf.cast(value, spec.dtype)) for spec, value in pairs]
            try:
                found.append(program.given(made_up))
            except tf.errors.OpError as error:
                said = str(error).split("\n", maxsplit=1)[0]
                raise ValueError(
                    "A program must be compiled ahead with a made-up batch, but the host cannot "
                    f"compute its part of {values} ({said}). Let the first batch compile it."
                ) from error
    if len(list(_in_runs(found))) > 1:
        raise ValueError(
            "A program must be compiled ahead for known sizes, but a batch decides those of what "
            f"the host computes ({', '.join(program.host.places)}). Fix the size in the layer, as "
            "by `TextVectorization(output_sequence_length=128)`, or let the first batch compile it."
        )
    return found[0]


def on_host(array: Any) -> Any:
    """Returns an array on the devices as a tensor of TensorFlow; other values as they are."""
    return tf.constant(fetched(array)) if hasattr(array, "addressable_shards") else array


def _tensors(*given: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(given) if tf.is_tensor(leaf)]
