"""Variables whose values stay on the devices between steps, and come home when they are asked for.

A value is at one of two places, or at both. A program takes it to the devices and leaves the new
one there. Whoever reads it on the host has it copied there first; whoever takes hold of it in
another way may write it, and the devices' copy is dropped. One thread at a time moves values: see
`MOVING`.

A value of which the devices have shards is there only, so that a model need not fit into the host's
memory: a reader is given a copy, and what the host makes, or assigns, is sent on at once.

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
from tfdp.strategy.xla.device_arrays import fetched, of_first, placed, untouched
from tfdp.strategy.xla.holdings import Holding

# The name under which a handle knows its variable: a traced program captures handles.
_VARIABLE = "_tfdp_device_variable"

# The host keeps copies of values of fewer bytes, and of other kinds, which large ones are not of.
SMALLEST_DROPPED = 2**18
_DROPPED = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

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
    _is_lent = False  # whether somebody has the resource, who may read what the host has
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
                self._is_lent = True
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
                self._is_lent = True
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
        was_home = self._is_home
        if self.is_parted:
            self.read_value()
        before = self._captured_by
        try:
            yield
        finally:
            if jax.process_count() > 1:  # else one that made a graph would fetch alone
                self._captured_by = before
            with MOVING:
                if self._array is not None and self._is_home and not was_home:
                    self._drop_copy(self._array)

    def assign(self, *args: Any, **kwargs: Any) -> Any:
        """Assigns a value, which no program takes before it is there."""
        with MOVING:
            was_lent = self._is_lent
            assigned = super().assign(*args, **kwargs)
            if not tf.executing_eagerly():
                return assigned
            self._is_lent = was_lent
            self.spread()
            # What TensorFlow returns would read the host's resource.
            return assigned if assigned is None or self._array is None else self

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
            value = self._read_on_host()
            is_own = self._was_taken or jax.process_count() == 1
            if not self._was_taken:
                # Each process has made its own; later each writes what the others do.
                value, self._was_taken = of_first(value), True
            (array,) = placed([value], [layout])
            self._fetched = array if is_own else None
            self._drop_copy(array)
            self._is_lent = False
        holding.put(place, array)
        if self._captured_by:
            self.left(array)
        else:
            # In this order: whoever interrupts it, as Ctrl-C does, leaves a place that is asked.
            self._held, self._own = (holding, place), None
            holding.stale.discard(place)

    def spread(self) -> None:
        """Sends what the host has made to the devices, before a program has settled its layout."""
        layouts = self.distribute_strategy.extended.layouts
        with MOVING:
            may_drop = self._may_drop() and not self._is_lent
            layout = layouts.spread(tuple(self.shape)) if may_drop else None
            if layout is not None:
                (self._own,) = placed([self._read_on_host()], [layout])
                self._drop_copy(self._own)

    def let_go(self) -> None:
        """Takes the value from the holding that has it; the caller holds `MOVING`."""
        if self._held is not None:
            holding, place = self._held
            holding.stale.add(place)
            self._own, self._held = holding.array(place), None
            holding.drop(place)

    def left(self, array: Any) -> None:
        """Brings home the value of one that a graph may use; the caller holds `MOVING`."""
        self._own = array
        self._come_home()
        self._own = self._fetched = None

    def _come_home(self) -> None:
        array = self._array
        if array is None or array is self._fetched:
            return
        value = fetched(array)
        # A copy, if it is the device's memory: the next step writes in place.
        self._write_on_host(value if value.flags.writeable else value.copy())
        self._fetched = array

    def _may_drop(self) -> bool:
        if self._captured_by or self.dtype not in _DROPPED or not self.shape.is_fully_defined():
            return False
        return bool(self.shape.num_elements() * self.dtype.size >= SMALLEST_DROPPED)

    def _drop_copy(self, array: Any) -> None:
        """Drops the host's copy of what an array has, if that is in shards.

        If each device has all of a value, the host's memory has room for it as well.
        """
        if self._may_drop() and not array.is_fully_replicated:
            self._fetched = None  # in all processes alike, which fetch shards together
            if not self._is_lent:
                with eager_mode():  # of the shape by which TensorFlow lowers a program
                    zeros = untouched(self.shape, self.dtype)
                self._write_on_host(zeros)

    def _write_on_host(self, value: Any) -> None:
        with tf.init_scope(), eager_mode(), tf.device(self._resource.device):
            tf.raw_ops.AssignVariableOp(resource=self._resource, value=value)

    def _read_on_host(self) -> np.ndarray:
        """Returns a copy: a program writes in place, and a device's array may be the host's."""
        with tf.init_scope(), eager_mode():
            value = tf.raw_ops.ReadVariableOp(resource=self._resource, dtype=self.dtype)
        return np.array(np.asarray(value))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with MOVING:
            before, self._is_read, was_home = self._is_read, True, self._is_home
            try:
                yield
            finally:
                self._is_read = before
                is_copied = self._is_home and not was_home and self._array is not None
                if is_copied and not self.is_parted:
                    self._drop_copy(self._array)


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
