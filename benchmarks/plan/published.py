"""Scaling that others have published, beside what the prediction says of it."""

import dataclasses
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

import tfdp
from tfdp.tools.prediction import (
    ClusterModel,
    GradientTensor,
    Plan,
    Prediction,
    Workload,
    described_links,
    predict,
)


@dataclasses.dataclass(frozen=True)
class Published:
    """One published efficiency, and what it was measured on.

    Attributes:
      source: The paper.
      model: A name of `keras.applications`, whose gradients are taken.
      batch: The examples of a GPU.
      rate: The images per second of one GPU.
      hosts: The number of hosts.
      gpus: The GPUs of each.
      gigabits: What a host's card sends, in Gbit/s.
      plan: How gradients were summed.
      efficiency: What was published.

    >>> PUBLISHED[0].ranks
    512
    """

    source: str
    model: str
    batch: int
    rate: float
    hosts: int
    gpus: int
    gigabits: float
    plan: Plan
    efficiency: float

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return self.hosts * self.gpus


_HOROVOD = "Sergeev and Del Balso, 1802.05799"
_GOYAL = "Goyal et al., 1706.02677"
# Rings in buckets of Tensor Fusion's 64 MB; halving and doubling between hosts after a sum in each.
_FUSED_BYTES = 64 * 10**6
_RING = Plan("native", 64 * 2**20)
_LEVELS = Plan("halving_doubling", 4 * 2**20)

# The rates of Horovod's models are those of TensorFlow's benchmarks of 2017 (DGX-1, batch 64).
PUBLISHED = (
    Published(_HOROVOD, "InceptionV3", 64, 142.0, 128, 4, 25.0, _RING, 0.90),
    # Between ResNet-50's 219 and ResNet-152's 91.8, by operations: 4.1, 7.8 and 11.5 GFLOP.
    Published(_HOROVOD, "ResNet101", 64, 129.0, 128, 4, 25.0, _RING, 0.90),
    Published(_HOROVOD, "VGG16", 64, 154.0, 128, 4, 25.0, _RING, 0.68),
    # Section 4 of the paper: the backward pass of 32 images takes 120 ms.
    Published(_GOYAL, "ResNet50", 32, 32 / 0.18, 32, 8, 50.0, _LEVELS, 0.90),
)

# What the papers do not tell: messages between hosts, and inside, where P100s share PCIe or NVLink;
# and how much a GPU's steps differ.
_LATENCY, _INSIDE_GIGABITS, _INSIDE_LATENCY = 20e-6, 80.0, 5e-6
_DEVIATION = 0.02


def predicted(
    published: Published, tensors: tuple[GradientTensor, ...], ranks: int, delays: bool = True
) -> Prediction:
    """Returns the prediction for so many of the GPUs.

    Args:
      published: What was measured, and on what.
      tensors: The model's gradients.
      ranks: A number of GPUs that fill hosts, or are fewer than a host has.
      delays: Whether messages and operations take time beside their bytes.
    """
    seconds = published.batch / published.rate
    work = Workload(
        tensors, seconds / 3, 2 * seconds / 3, batch=published.batch, slots=1, deviation=_DEVIATION
    )
    links = described_links(
        published.gigabits * 1e9, _LATENCY, _INSIDE_GIGABITS * 1e9, _INSIDE_LATENCY, "nccl"
    )
    if not delays:
        links = tfdp.topology.Links(
            0.0, links.bytes_per_second_inside, 0.0, links.bytes_per_second_between
        )
    return predict(published.plan, work, ClusterModel(ranks, published.gpus, links))


def fused(tensors: Sequence[GradientTensor], most_bytes: int) -> tuple[GradientTensor, ...]:
    """Returns gradients that travel together as one, as Horovod's Tensor Fusion lets them.

    tfdp lets tensors of 2 MiB travel alone, where copies cost more than a collective of its own;
    around a ring of 512 ranks each of these waits for 1,022 messages.

    >>> tensors = [GradientTensor((length,)) for length in (4, 2, 9)]
    >>> [one.elements for one in fused(tensors, 40)]
    [6, 9]
    """
    groups: list[list[GradientTensor]] = [[]]
    for tensor in reversed(tensors):  # the last gradients are there first
        if sum(one.size_bytes for one in groups[-1]) + tensor.size_bytes > most_bytes:
            groups.append([])
        groups[-1].append(tensor)
    return tuple(
        GradientTensor((1, sum(one.elements for one in group)), sum(one.work for one in group))
        for group in reversed(groups)
        if group
    )


def published_table() -> Table:
    """Builds the models, predicts, and returns the table.

    Cost: four models of `keras.applications` are built, some 20 s of a core.
    """
    import keras

    from tfdp.tools.plan.measuring import tensors_of

    table = Table(
        title="Published efficiencies",
        caption="predicted: with links that send half their rate, at the whole, and with no "
        "latency at all",
        box=SIMPLE_HEAD,
        padding=0,
        pad_edge=False,
    )
    columns = ("source", "model", "MB", "GPUs", "published", "predicted", "half", "no latency")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    for one in PUBLISHED:
        built = getattr(keras.applications, one.model)(weights=None)
        tensors = tensors_of(built)
        keras.backend.clear_session()
        half = dataclasses.replace(one, gigabits=one.gigabits / 2)
        size = sum(tensor.size_bytes for tensor in tensors)
        tensors = fused(tensors, _FUSED_BYTES) if one.plan == _RING else tensors
        table.add_row(
            one.source,
            one.model,
            f"{size / 1e6:.0f}",
            str(one.ranks),
            f"{one.efficiency:.0%}",
            f"{predicted(one, tensors, one.ranks).efficiency:.0%}",
            f"{predicted(half, tensors, one.ranks).efficiency:.0%}",
            f"{predicted(one, tensors, one.ranks, delays=False).efficiency:.0%}",
        )
    return table
