"""What tfdp is measured against: PyTorch's process groups, and TensorFlow's own strategies.

Each is imported where it is used, so that a rank of one does not load the other. Only benchmarks
use them. The private names of Keras were tried with Keras 3.15.1.
"""

import atexit
import json
import os
from typing import Any

from tfdp.cluster import run_status

# The sides by the name in options and results, with the name that tables show.
SIDES = {
    "tfdp": "tfdp",
    "tfdp_mpi": "tfdp, mpi",
    "stock": "stock",
    "stock_tuned": "stock, tuned",
    "ddp": "DDP, gloo",
    "one_device": "one device",
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

    run_status.tell(made=True)
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


def multi_worker_strategy() -> Any:
    """Returns TensorFlow's own strategy over the cluster in `TF_CONFIG`, with which `fit` starts.

    Two patches are needed. The symbolic build is left out, as it reduces a nested first batch
    (ValueError). And Keras is not told that the strategy has many workers, or it reduces scalars
    over an axis.
    """
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    trainer.TensorFlowTrainer._maybe_symbolic_build = lambda self, *args, **kwargs: None
    trainer._collective_all_reduce_multi_worker = lambda strategy: False
    return tf.distribute.MultiWorkerMirroredStrategy()
