"""Sums over the ranks that come first, as operations of a graph: see `first_arrivals`."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.communication.engines.host.driver import Driver
from tfdp.communication.engines.host.first_arrivals import ClosedSum, FirstArrivals
from tfdp.communication.engines.sequence import as_token, captured, run_independently


class ArrivalSums:
    """The sums of this process' replica, in the order in which a program asks for them.

    Args:
      arrivals: Makes them.
      driver: Runs what a step waits for.
      device: The replica's device, a CPU.
    """

    def __init__(self, arrivals: FirstArrivals, driver: Driver, device: str) -> None:
        self._arrivals, self._driver, self._device = arrivals, driver, device
        with tf.init_scope(), tf.device(device):
            name = f"tfdp_arrivals_{unique_number()}"
            self._token = as_token(
                tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)
            )

    @property
    def closed(self) -> Sequence[ClosedSum]:
        """The latest sums that this rank has taken part in, or taken; the last one last."""
        return list(self._arrivals.closed)

    @property
    def dropped_rows(self) -> int:
        """The examples that sums so far do without, as far as this rank knows."""
        return self._arrivals.dropped_rows

    def take_untold(self) -> list[ClosedSum]:
        """Returns the sums since the last call."""
        return self._arrivals.take_untold()

    def sum(self, tensor: tf.Tensor, rows: tf.Tensor, all_rows: tf.Tensor) -> tf.Tensor:
        """Returns the sum over the ranks that come first, the same bits on all ranks.

        Args:
          tensor: What this rank adds, one axis.
          rows: The number of the examples that it is of, an int32 scalar.
          all_rows: Those of all ranks.
        """

        def run(own: np.ndarray, rows: np.ndarray, all_rows: np.ndarray) -> np.ndarray:
            begun = self._arrivals.sum(own, int(rows), int(all_rows))
            self._driver.run(begun, f"the sum of {own.size} gradients of the ranks that come first")
            return begun.result

        total = self._in_order(run, [tensor, rows, all_rows], tensor.dtype)
        total.set_shape(tensor.shape)
        return total

    def is_closed(self) -> tf.Tensor:
        """Returns whether the next sum was closed without this rank, a boolean scalar."""

        def run() -> np.bool_:
            return np.bool_(self._arrivals.is_closed())

        found = self._in_order(run, [], tf.bool)
        found.set_shape([])
        return found

    def _in_order(
        self, function: Callable[..., object], inputs: Sequence[tf.Tensor], dtype: tf.DType
    ) -> tf.Tensor:
        """Calls a function of NumPy once the one before it is done, and always."""
        with tf.device(self._device):
            token = captured(self._token)
            with _after(token):
                result = tf.numpy_function(function, list(inputs), dtype)
                run_independently(result.op)
            with tf.control_dependencies([result]):
                tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
        return result


@contextlib.contextmanager
def _after(token: tf.Tensor) -> Iterator[None]:
    before = tf.raw_ops.AssignVariableOp(resource=token, value=tf.constant(0.0))
    with tf.control_dependencies([before]):
        yield
