"""PyTorch's process group over gloo, between ranks that `tfdp run` started."""

from __future__ import annotations

import atexit
import json
import os

from tfdp.cluster import run_status


def join(interface: str = "lo") -> tuple[int, int]:
    """Joins the ranks of `TF_CONFIG` in PyTorch's default process group.

    Args:
      interface: The network interface that gloo uses.

    Returns:
      The rank and the number of ranks.
    """
    from torch import distributed

    run_status.mark_strategy_made()
    config = json.loads(os.environ["TF_CONFIG"])
    addresses, rank = config["cluster"]["worker"], config["task"]["index"]
    host, port = addresses[0].rsplit(":", 1)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    distributed.init_process_group(
        "gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=len(addresses)
    )

    # Without these a rank that ends while another still talks to it aborts.
    atexit.register(distributed.destroy_process_group)
    atexit.register(distributed.barrier)
    return rank, len(addresses)
