"""The advice in sentences, for the report and for `tfdp plan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tfdp.tools.prediction.cluster_model import ClusterModel
from tfdp.tools.prediction.plans import Plan, predict
from tfdp.tools.prediction.ranking import candidates, limits, ranked
from tfdp.tools.prediction.workload import Workload

# Advice is given for what takes away this share of a step.
_WORTH_SAYING = 0.05


def plans_in_words(now: Plan, work: Workload, cluster: ClusterModel) -> Iterator[str]:
    """Yields what to try next: arguments that are predicted to be faster, and by how much.

    First what trains the same, then what changes the training, then a larger window of
    accumulation, then what limits the step.

    Args:
      now: The plan that is used.
      work: What a replica computes.
      cluster: The ranks and links.

    >>> from tfdp.tools.prediction.workload import even_tensors
    >>> from tfdp.topology import Links
    >>> slow = ClusterModel(4, 2, Links(1e-4, 1e9, 1e-3, 25e6))
    >>> for sentence in plans_in_words(Plan(), Workload(even_tensors(10**6), 0.1, 0.2), slow):
    ...     print(sentence)
    Predicted to be faster, training the same: `...`, by 30% of a step.
    Faster still, but other training: `...LocalSGD(100))`, by 37% of a step.
    Send once for several batches: `gradient_accumulation_steps=4` of the optimizer, by ...
    What limits a step most is the forward and backward pass: twice as good, it would ...
    """
    current = predict(now, work, cluster)
    rows = ranked(
        candidates(now, normalizes=any(layer.is_plain for layer in work.normalized)), work, cluster
    )
    least = current.step_seconds
    for exact, words in (
        (True, "Predicted to be faster, training the same"),
        (False, "Faster still, but other training"),
    ):
        one = next((row for row in rows if row.plan.is_exact == exact), current)
        gain = (least - one.step_seconds) / current.step_seconds
        if gain > _WORTH_SAYING:
            total = 1 - one.step_seconds / current.step_seconds
            yield f"{words}: `{one.plan.written()}`, by {100 * total:.0f}% of a step."
            least = one.step_seconds
    window = dataclasses.replace(now, accumulation=4 * now.accumulation)
    gain = 1 - predict(window, work, cluster).step_seconds / current.step_seconds
    if gain > _WORTH_SAYING:
        yield (
            f"Send once for several batches: `gradient_accumulation_steps={window.accumulation}` "
            f"of the optimizer, by {100 * gain:.0f}% of a step. A larger global batch does the "
            "same; `tfdp.optimizers.LAMB` or `LARS` keep it accurate."
        )
    found = limits(now, work, cluster)
    if found:
        yield (
            f"What limits a step most is {found[0].name}: twice as good, it would take "
            f"{100 * found[0].gain:.0f}% off."
        )
