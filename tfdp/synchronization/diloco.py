"""DiLoCo: an outer optimizer that takes what a round has changed for its gradient."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

from tfdp.synchronization.weight_averaging import WeightAveraging, check_count


@dataclasses.dataclass(frozen=True)
class DiLoCo(WeightAveraging):
    """Lets an outer optimizer update weights by the replicas' change in a round.

    1. Each replica updates its weights with its own optimizer, `every` times, as in `LocalSGD`.
       Its state stays from round to round. The paper uses AdamW; any optimizer will do.
    2. The outer gradient is the mean change of the replicas: the weights at which the round began
       minus the mean of the replicas' weights.
    3. The outer optimizer updates the weights at which the round began, and all replicas continue
       from the result.

    An outer `SGD(1.0)` without momentum is `LocalSGD`.

    With `fragments=P` the variables are divided into P parts. Part p ends its round after update
    every (p + 1) / P of each `every`, and has its own outer optimizer. So no step sends more than
    the largest part.

    With `overlap=alpha` no step waits for such a sum, if it takes no longer than the gradients of
    the next step, which replicas compute meanwhile:

    1. After update t, the last one of a part's round, all replicas continue with their own weights.
    2. The next step sums the outer gradients of these weights while it computes its gradients. The
       outer optimizer then updates the weights w at which the round began. If the model sums in its
       own passes, as BatchNormalization does, this sum comes after those; eagerly it comes after
       the gradients.
    3. After its own update each replica continues from alpha * (its own weights) + (1 - alpha) * w,
       and the part's next round has begun at w. So replicas stay different, but near each other,
       until an epoch, or a program, ends all rounds.

    Fragments and overlap follow Douillard et al.: Streaming DiLoCo with overlapping communication,
    arXiv 2501.18512 (2025), with its delay tau of one step. Deviation: the parts are of equal size
    rather than of whole layers.

    With the strategy's `compression` the outer gradients are compressed.

    Source: Douillard et al.: DiLoCo: Distributed Low-Communication Training of Language Models,
    arXiv 2311.08105 (2023), algorithm 1.

    Cost: as `LocalSGD` a round; a step sends at most 1/P of that if no variable is larger. Memory
    on each replica: a copy of the weights in float32 and the slots of the outer optimizer, one for
    Nesterov's momentum. `overlap` costs no memory and sends the same.

    Args:
      every: The number of updates in a round, at least 1; the paper's is 500.
      outer_optimizer: A function without arguments that makes a `keras.optimizers.Optimizer`, since
        the optimizer's variables must be made in the strategy's scope.
        None: the paper's, `keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)`.
      fragments: The number of parts P, at least 1 and at most `every`.
      overlap: The weight alpha of a replica's own variables when it continues, at least 0 and less
        than 1; the paper's is 0.5. With 0 the update of the step in between is lost. None: a step
        waits for its sum.

    Raises:
      ValueError: `every` or `fragments` is not a whole number, or `overlap` is no number, or one of
        them is out of range.
      TypeError: `outer_optimizer` is no function, or makes something else.

    >>> import keras
    >>> DiLoCo(every=50, outer_optimizer=lambda: keras.optimizers.SGD(0.5)).every
    50
    """

    has_outer_optimizer: ClassVar[bool] = True

    every: int
    outer_optimizer: Callable[[], Any] | None = None
    fragments: int = 1
    overlap: float | None = None

    def __post_init__(self) -> None:
        check_count("DiLoCo", "every", self.every, 1, "DiLoCo(every=50)")
        check_count("DiLoCo", "fragments", self.fragments, 1, "DiLoCo(every=50, fragments=4)")
        if self.fragments > self.every:
            raise ValueError(
                "Each of the `fragments` of DiLoCo must have an update of its own in a round, but "
                f"received fragments={self.fragments} and every={self.every}. Use at most "
                f"fragments={self.every}."
            )
        number = isinstance(self.overlap, (int, float)) and not isinstance(self.overlap, bool)
        if self.overlap is not None and not (number and 0 <= self.overlap < 1):
            raise ValueError(
                "`overlap` of DiLoCo must be the weight of a replica's own variables, at least 0 "
                f"and less than 1, but received {self.overlap!r}. Use DiLoCo(every=50, "
                "overlap=0.5), or None for steps that wait."
            )
        if self.outer_optimizer is not None and not callable(self.outer_optimizer):
            raise TypeError(
                "`outer_optimizer` must be a function that makes the optimizer, which is called in "
                f"the strategy's scope, but received {self.outer_optimizer!r}. Use "
                "outer_optimizer=lambda: keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)."
            )

    def make_outer_optimizer(self) -> Any:
        """Returns a new outer optimizer; see `WeightAveraging.make_outer_optimizer`.

        Raises:
          TypeError: `outer_optimizer` returns something else.
        """
        import keras

        if self.outer_optimizer is None:
            return keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        made = self.outer_optimizer()
        if not isinstance(made, keras.optimizers.Optimizer):
            raise TypeError(
                "`outer_optimizer` must return a new `keras.optimizers.Optimizer`, but returned "
                f"{made!r}. Use outer_optimizer=lambda: keras.optimizers.SGD(0.7, momentum=0.9, "
                "nesterov=True)."
            )
        return made
