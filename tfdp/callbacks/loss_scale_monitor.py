"""A callback that logs the loss scale, and the steps that were skipped because of it."""

from typing import Any

import keras


class LossScaleMonitor(keras.callbacks.Callback):
    """Adds `loss_scale` and `skipped_steps` to the logs of training.

    The logs of epochs, as `History`, CSVLogger and the others see them, hold:

    - `loss_scale`: the factor of the loss after the epoch.
    - `skipped_steps`: the number of the epoch's steps that did not change the weights, because a
      gradient was not finite; with `gradient_accumulation_steps`, the number of skipped
      micro-batches. A few at the start, while the scale settles, are normal; many are not.

    Under a strategy of tfdp, `fit` adds this callback by itself where the optimizer is a
    `keras.optimizers.LossScaleOptimizer`, as `mixed_float16` makes it. Elsewhere put it before the
    callbacks that are to see its numbers.

    With `steps_per_execution` above 1 Keras does not say how many steps an epoch's last execution
    had: `skipped_steps` is left out unless all executions of the epoch were whole.

    Cost: two scalars are read from the device after each epoch.

    Raises:
      ValueError: The optimizer has no loss scale that changes, when training begins.

    >>> import keras, numpy as np
    >>> model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    >>> adam = keras.optimizers.Adam(1e-3)
    >>> model.compile(keras.optimizers.LossScaleOptimizer(adam, initial_scale=1024.0), "mse")
    >>> data = np.ones([8, 4], "float32"), np.ones([8, 1], "float32")
    >>> history = model.fit(*data, callbacks=[LossScaleMonitor()], verbose=0).history
    >>> history["loss_scale"], history["skipped_steps"]
    ([1024.0], [0])
    """

    # Steps are counted without asking the device, so that it need not wait for Python.
    async_safe = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks that there is something to report."""
        optimizer = self.model.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "LossScaleMonitor needs a model whose optimizer is a LossScaleOptimizer, but "
                f"received one with {type(optimizer).__name__}. Compile with "
                "`keras.optimizers.LossScaleOptimizer(optimizer)`, or leave the callback out."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts to count the epoch's steps."""
        self._before = self._applied()
        self._attempted = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the steps of the epoch."""
        self._attempted = batch + 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Adds the numbers to the epoch's logs."""
        if logs is None:
            return
        logs["loss_scale"] = float(self.model.optimizer.dynamic_scale.numpy())
        # If the last execution was cut short, `batch` goes beyond the steps that were asked for, or
        # the data ended before them.
        whole = self._attempted == self.params.get("steps")
        if self.model.steps_per_execution == 1 or whole:
            logs["skipped_steps"] = self._attempted - (self._applied() - self._before)

    def get_state(self) -> dict[str, int]:
        """Returns what the epoch's numbers are counted from, for Checkpoint; JSON.

        >>> monitor = LossScaleMonitor()
        >>> monitor.set_state({"before": 100, "attempted": 3})
        >>> monitor.get_state()
        {'before': 100, 'attempted': 3}
        """
        return {"before": self._before, "attempted": self._attempted}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes on counting an epoch, whose beginning `get_state` has returned."""
        self._before, self._attempted = state["before"], state["attempted"]

    def _applied(self) -> int:
        return applied_steps(self.model.optimizer) or 0


def applied_steps(optimizer: Any) -> int | None:
    """Returns the number of steps that a LossScaleOptimizer has not skipped; None for others."""
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return None
    # `iterations` would count updates instead of micro-batches. Neither counts skipped ones.
    return int(optimizer.inner_optimizer._iterations.numpy())
