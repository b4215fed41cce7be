"""Functions that many collectives of one process share: each is traced once for all replicas.

A step of a network with synchronized statistics has hundreds of collectives. Those of the same kind
and shapes differ in their keys alone, which are arguments here; and what replicas run differs in
the device, and in the token that orders their collectives.
"""

import dataclasses
import weakref
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdp.communication.engines import (
    CollectiveCall,
    Sequences,
    TensorFlowEngine,
    next_key,
    next_site,
)
from tfdp.partition import Collective, add_function, on_device, remove_functions
from tfdp.strategy._tensorflow_programs import FunctionDef


class SharedFunctions:
    """The shared functions of a strategy's collectives within one process.

    Args:
      engine: TensorFlow's, which takes keys when the step runs.
      devices: The devices of the replicas.
    """

    def __init__(self, engine: TensorFlowEngine, devices: Sequence[str]) -> None:
        self._engine, self._devices = engine, devices
        self._made: dict[
            tuple[str, tuple[tf.TensorSpec, ...]], tuple[Collective, Sequence[CollectiveCall]]
        ] = {}

    def collective(
        self,
        kind: str,
        of_rank: Callable[..., list[tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
    ) -> Collective:
        """Returns a collective with keys of its own.

        Args:
          kind: What `of_rank` does, in a word.
          of_rank: What a replica runs, given its number and tensors. It does not depend on the
            number, but for the first one's.
          specs: The specifications of the tensors.
        """
        key = kind, tuple(specs)
        if key not in self._made:
            self._made[key] = self._traced(of_rank, specs)
        made, calls = self._made[key]
        keys = tuple(next_site() if call.is_varying else next_key() for call in calls)
        return dataclasses.replace(made, keys=keys)

    def _traced(
        self, of_rank: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]
    ) -> tuple[Collective, Sequence[CollectiveCall]]:
        """Returns a collective without keys, and the calls that need one each."""
        calls = _calls_of(of_rank, specs)
        keys = [tf.TensorSpec([], tf.int32)] * len(calls)
        everyone = tuple(range(len(self._devices)))
        functions, definitions, captured = [], [], []
        for rank, device in enumerate(self._devices):
            # The others' are copies of the second's: only the first gives something of its own.
            if rank < 2:

                def traced(*tensors: tf.Tensor, rank: int = rank) -> list[tf.Tensor]:
                    own, given = tensors[: len(specs)], tensors[len(specs) :]
                    with _GivenKeys(given).apart(rank):
                        return of_rank(rank, *own)

                functions.append(traced_apart(traced, [*specs, *keys]))
            function = functions[-1]
            definition = on_device(
                function.function_def,
                device,
                {function.name.decode(): f"{function.name.decode()}_on_{rank}"},
            )
            definitions.append(definition)
            tokens = {id(self._engine.order_token(everyone, each)) for each in (0, 1)}
            captured.append(
                [
                    self._engine.order_token(everyone, rank) if id(tensor) in tokens else tensor
                    for tensor in function.captured_inputs
                ]
            )
        return registered_collective(functions, definitions, captured), calls


class _Alive:
    """Functions that others are copies of; those are registered as long as it lives."""

    def __init__(self, functions: Sequence[object], copies: Sequence[FunctionDef]) -> None:
        self.functions = list(functions)
        for copy in copies:
            add_function(copy)
        weakref.finalize(self, remove_functions, [copy.signature.name for copy in copies])


def registered_collective(
    functions: Sequence[tf.types.experimental.ConcreteFunction],
    definitions: Sequence[FunctionDef],
    captured: Sequence[Sequence[tf.Tensor]],
) -> Collective:
    """Returns a collective whose functions the runtime knows, with copies that are inlined.

    Args:
      functions: What `traced_apart` made, which the collective keeps alive.
      definitions: Of each local replica its function: one of these, or a copy of one.
      captured: See `Collective`.
    """
    inlined = [_inlined(definition) for definition in definitions]
    known = {function.name.decode() for function in functions}
    copies = [each for each in definitions if each.signature.name not in known]
    return Collective(
        names=[definition.signature.name for definition in definitions],
        inlined=[definition.signature.name for definition in inlined],
        dtypes=[output.dtype for output in functions[0].outputs],
        captured=captured,
        alive=_Alive(functions, [*copies, *inlined]),
    )


def _inlined(definition: FunctionDef) -> FunctionDef:
    copy = FunctionDef()
    copy.CopyFrom(definition)
    copy.signature.name += "_inlined"
    del copy.attr["_noinline"]
    return copy


class _GivenKeys(Sequences):
    """The records of a function whose collectives get their keys when the step runs."""

    def __init__(self, keys: Sequence[tf.Tensor]) -> None:
        super().__init__()
        self.known_alike = True
        self.calls: list[CollectiveCall] = []
        self._keys = keys

    def instance_key(self, rank: int, call: CollectiveCall, keys: int = 1) -> tf.Tensor:
        """Returns the next of the given keys."""
        self.calls.append(call)
        return self._keys[len(self.calls) - 1]


def _calls_of(
    of_rank: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> Sequence[CollectiveCall]:
    """Returns the collectives of a function, which need a key each: it is traced to find them."""
    counted: list[_GivenKeys] = []

    def trial(*tensors: tf.Tensor) -> list[tf.Tensor]:
        counted.append(_GivenKeys([tf.constant(0)] * 64))
        with counted[-1].apart(1):
            return of_rank(1, *tensors)

    traced_apart(trial, specs)
    return counted[-1].calls


def traced_apart(
    function: Callable[..., list[tf.Tensor]], specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
    """Traces a function outside of all graphs that is called as such, and not inlined.

    In a loop the runtime would tell the replicas' collectives apart if they were inlined.
    """
    made = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
    with tf.init_scope():
        return made.get_concrete_function(*specs)
