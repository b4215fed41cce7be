"""One measurement of PyTorch's DDP in this process, with gloo or NCCL; prints one line of JSON.

    tfdp run -n 2 -- python -m tfdp.tools.bench.ddp_worker --model mlp --batch 16 --steps 20

It trains what `tfdp.tools.bench.fit_worker` trains: the same layers, batches, loss and optimizer.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import statistics
import time
from typing import TYPE_CHECKING

from tfdp.cluster import rank_status
from tfdp.tools.bench.bench_models import CLASSES, DENSE, LEARNING_RATE, MOMENTUM, random_batch

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel


def measure(model: str, batch: int, steps: int, device: str = "CPU") -> dict:
    """Times steps of DDP in the cluster that this process is in.

    Args:
      model: A name in :data:`tfdp.tools.bench.bench_models.DENSE`.
      batch: The number of examples per replica.
      steps: The number of steps to time after the first.
      device: "CPU", with gloo, or "GPU": the rank's first one, with NCCL, without TensorFloat-32.

    Returns:
      What :func:`tfdp.tools.bench.fit_worker.measure` returns.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    on_gpu = device == "GPU"
    rank, world_size = join_torch(backend="nccl" if on_gpu else "gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    place = torch.device("cuda:0" if on_gpu else "cpu")
    built = DistributedDataParallel(_build(model).to(place))
    optimizer = torch.optim.SGD(built.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    loss_of = torch.nn.CrossEntropyLoss()
    inputs, labels = random_batch(model, world_size * batch)
    own = slice(rank * batch, (rank + 1) * batch)
    seconds, loss = [], 0.0
    for _ in range(steps + 1):
        began = time.perf_counter()
        x = torch.from_numpy(inputs[own]).to(place)
        y = torch.from_numpy(labels[own]).long().to(place)
        optimizer.zero_grad()
        value = loss_of(built(x), y)
        value.backward()
        optimizer.step()
        loss = value.item()
        seconds.append(time.perf_counter() - began)
    return {
        "side": "ddp",
        "model": model,
        "replicas": world_size,
        "batch_per_replica": batch,
        "parameters": sum(each.numel() for each in built.parameters()),
        "first_step_seconds": seconds[0],
        "step_seconds": seconds[1:],
        "median_step_seconds": statistics.median(seconds[1:]),
        "collectives": _buckets(built),
        "threads": torch.get_num_threads(),
        "final_loss": loss,
        "versions": {"torch": torch.__version__},
    }


def join_torch(interface: str = "lo", backend: str = "gloo") -> tuple[int, int]:
    """Joins the ranks of `TF_CONFIG` in PyTorch's default process group.

    Args:
      interface: The network interface that gloo uses.
      backend: "gloo", or "nccl" for ranks that have a GPU each.

    Returns:
      The rank and the number of ranks.
    """
    from torch import distributed

    rank_status.tell(made=True)
    config = json.loads(os.environ["TF_CONFIG"])
    addresses, rank = config["cluster"]["worker"], config["task"]["index"]
    host, port = addresses[0].rsplit(":", 1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    distributed.init_process_group(
        backend, init_method=f"tcp://{host}:{port}", rank=rank, world_size=len(addresses)
    )

    # Without these a rank that ends while another still talks to it aborts.
    atexit.register(distributed.destroy_process_group)
    atexit.register(distributed.barrier)
    return rank, len(addresses)


def _build(model: str) -> torch.nn.Module:
    import torch

    sizes = DENSE[model]
    layers: list[torch.nn.Module] = []
    for number in range(sizes.layers):
        features = sizes.units if number else sizes.features
        layers += [torch.nn.Linear(features, sizes.units), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(sizes.units, CLASSES))


def _buckets(built: DistributedDataParallel) -> int:
    """Returns the number of buckets, each of which is one all-reduce, since the first step."""
    known = built._get_ddp_logging_data()
    sizes = known.get("rebuilt_bucket_sizes") or known["bucket_sizes"]
    return len(str(sizes).split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description="One measurement of `benchmarks fit`: DDP.")
    parser.add_argument("--model", choices=tuple(DENSE), required=True)
    for name in ("--batch", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=("CPU", "GPU"), default="CPU")
    print(json.dumps(measure(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
