"""Variables whose values stay on the devices between steps, and come home when they are asked for.

A value is at one of two places, or at both. A program takes it to the devices and leaves the new
one there. Whoever reads it on the host has it copied there first; whoever takes hold of it in
another way may write it, and the devices' copy is dropped. One thread at a time moves values: see
`MOVING`.

Between two calls of a program nobody is asked for anything. What a call returns is kept whole, as
what the next call takes: a `Holding`. A variable looks there for its array when somebody
asks for it, and whoever writes it, or takes it to another program, notes in the holding that its
place there is stale.
"""

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding

from tfdp.communication.replicas import HasLayout, one_device
from tfdp.keras._keras import SCRATCH_GRAPH
from tfdp.strategy.xla._tensorflow import ResourceVariable, eager_mode
from tfdp.strategy.xla.device_arrays import fetched, of_first, placed
from tfdp.strategy.xla.holdings import Holding

# The name under which a handle knows its variable: a traced program captures handles.
_VARIABLE = "_tfdp_device_variable"

# Held while a value is where nobody may look: from when a program takes it until the program has
# left the new one, while it comes home, and while the host reads or assigns it.
MOVING = threading.RLock()


class DeviceVariable(HasLayout, ResourceVariable):
    """A variable of TensorFlow on the host, whose value may be on the devices instead.

    Attributes:
      is_weight: Whether it was made as trainable; `XLAStrategy` shards by it.
    """

    # Instances are made by TensorFlow and given this class: see `adopt`.
    is_weight = True
    _held: tuple[Holding, int] | None = None  # what has the value on the devices, and where in it
    _own: Any = None  # the value on the devices where no holding has it; None: they have none
    _fetched: Any = None  # the array whose value the host has as well
    _was_taken = False  # whether the devices have had the value before
    _is_read = False  # while it is read on the host
    # Graphs of others, each of which may read or write it at any time. Several processes forget
    # graphs at different times, and must fetch parts together: there it is True from the first one.
    _captured_by: Any = None

    @property
    def distribute_strategy(self) -> tf.distribute.Strategy:
        """The strategy in whose scope it was made."""
        strategy: tf.distribute.Strategy = self._distribute_strategy
        return strategy

    @property
    def _handle(self) -> tf.Tensor:
        """The resource, for which TensorFlow's C++ asks by this name to read an operand."""
        if tf.executing_eagerly():
            with MOVING:
                self._come_home()
        return self._resource

    @property
    def _resource(self) -> tf.Tensor:
        resource: tf.Tensor = self.__dict__["_handle"]
        return resource

    @property
    def _array(self) -> Any:
        """The value on the devices; None: they have none."""
        if self._held is None:
            return self._own
        holding, place = self._held
        return holding.array(place)

    @property
    def _is_home(self) -> bool:
        """Whether the host has the value."""
        return self._array is None or self._array is self._fetched

    @property
    def handle(self) -> tf.Tensor:
        """The resource, which whoever asks may write."""
        handle = self._resource
        if not tf.executing_eagerly():
            if one_device.is_traced():
                return handle  # of a program that takes the value itself
            graph = tf.compat.v1.get_default_graph()
            if getattr(graph, "name", "").startswith(SCRATCH_GRAPH):
                return handle  # which is never run
            if jax.process_count() > 1:
                self._captured_by = True
            else:
                self._captured_by = self._captured_by or weakref.WeakSet()
                self._captured_by.add(graph)
        with MOVING:
            self._come_home()
            if self._captured_by or not self._is_read:
                self.let_go()
                self._own = self._fetched = None
        return handle

    def value(self) -> tf.Tensor:
        """Returns the value, fetched from the devices if it is there."""
        with self._reading():
            return super().value()

    def read_value(self) -> tf.Tensor:
        """Returns the value, fetched from the devices if it is there."""
        with self._reading():
            return super().read_value()

    @property
    def is_parted(self) -> bool:
        """Whether each process has a part of the value, so that all must read it together."""
        with MOVING:
            array = self._array
        return array is not None and not (array.is_fully_addressable or array.is_fully_replicated)

    @contextlib.contextmanager
    def at_home(self) -> Iterator[None]:
        """Has the value at home: see `CompilesPrograms.at_home`."""
        if self.is_parted:
            self.read_value()
        before = self._captured_by
        try:
            yield
        finally:
            if jax.process_count() > 1:  # else one that made a graph would fetch alone
                self._captured_by = before

    def assign(self, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value, which no program takes before it is there."""
        with MOVING:
            return super().assign(*args, **kwargs)

    def assign_add(self, *args: Any, **kwargs: Any) -> Any:
        """Adds to the value, which no program takes meanwhile."""
        with MOVING:
            return super().assign_add(*args, **kwargs)

    def assign_sub(self, *args: Any, **kwargs: Any) -> Any:
        """Subtracts from the value, which no program takes meanwhile."""
        with MOVING:
            return super().assign_sub(*args, **kwargs)

    def taken(self, layout: NamedSharding, holding: Holding, place: int) -> None:
        """Puts the value on the devices into a holding; the caller holds `MOVING`.

        Args:
          layout: The layout of the array. A value that lies otherwise, as another strategy has it,
            comes home and is sent again, and so does one that a graph may write.
          holding: The holding, which has the value from now on, if no graph may write it.
          place: The place in it.
        """
        array = self._array
        if array is not None and (self._captured_by or array.sharding != layout):
            self._come_home()
            array = None
        if array is None:
            # A copy: a program writes in place, and a device's array may be the host's.
            value = np.array(self._read_on_host().numpy())
            is_own = self._was_taken or jax.process_count() == 1
            if not self._was_taken:
                # Each process has made its own; later each writes what the others do.
                value, self._was_taken = of_first(value), True
            (array,) = placed([value], [layout])
            self._fetched = array if is_own else None
        holding.put(place, array)
        if self._captured_by:
            self.left(array)
        else:
            # In this order: whoever interrupts it, as Ctrl-C does, leaves a place that is asked.
            self._held, self._own = (holding, place), None
            holding.stale.discard(place)

    def let_go(self) -> None:
        """Takes the value from the holding that has it; the caller holds `MOVING`."""
        if self._held is not None:
            holding, place = self._held
            holding.stale.add(place)
            self._own, self._held = holding.array(place), None

    def left(self, array: Any) -> None:
        """Brings home the value of one that a graph may use; the caller holds `MOVING`."""
        self._own = array
        self._come_home()
        self._own = self._fetched = None

    def _come_home(self) -> None:
        array = self._array
        if array is None or array is self._fetched:
            return
        value = np.array(fetched(array))  # a copy: the next step writes in place
        with tf.init_scope(), eager_mode(), tf.device(self._resource.device):
            tf.raw_ops.AssignVariableOp(resource=self._resource, value=value)
        self._fetched = array

    def _read_on_host(self) -> tf.Tensor:
        with tf.init_scope(), eager_mode():
            return tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=self.dtype)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with MOVING:
            before, self._is_read = self._is_read, True
            try:
                yield
            finally:
                self._is_read = before


def adopt(variable: tf.Variable, is_weight: bool) -> tf.Variable:
    """Makes a variable that was made on the host one whose value may be on the devices.

    Args:
      variable: The variable. One that a graph makes at its first call stays as it is.
      is_weight: See `DeviceVariable`.
    """
    if type(variable) is ResourceVariable:
        variable.__class__ = DeviceVariable
        variable.is_weight, variable.path = is_weight, variable.name.split(":")[0]
        setattr(variable._resource, _VARIABLE, weakref.ref(variable))
    return variable


def variable_of(handle: tf.Tensor) -> DeviceVariable | None:
    """Returns the variable of a captured handle; None: it is not of one of these."""
    reference = getattr(handle, _VARIABLE, None)
    return None if reference is None else reference()
