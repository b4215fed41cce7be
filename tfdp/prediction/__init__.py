"""The prediction of a step's time and memory on a cluster, and the ranking of plans: pure Python.

`tfdp plan`, the report's advice and, by the model of one sum in `tfdp.topology`, `topology="auto"`
all ask this.
"""

from tfdp.prediction.cluster import Cluster, described_links
from tfdp.prediction.memory import Memory, memory_of, ranks_to_fit
from tfdp.prediction.plans import Plan, Prediction, predict
from tfdp.prediction.ranking import Limit, candidates, limits, ranked
from tfdp.prediction.workload import SLOTS, Normalized, Tensor, Workload, even_tensors

__all__ = [
    "SLOTS",
    "Cluster",
    "Limit",
    "Memory",
    "Normalized",
    "Plan",
    "Prediction",
    "Tensor",
    "Workload",
    "candidates",
    "described_links",
    "even_tensors",
    "limits",
    "memory_of",
    "predict",
    "ranked",
    "ranks_to_fit",
]
