"""The prediction of a step's time and memory on a cluster, and the ranking of plans: pure Python.

`tfdp plan`, the report's advice and, by the model of one sum in `tfdp.topology`, `topology="auto"`
all ask this.
"""

from tfdp.tools.prediction.cluster_model import ClusterModel, described_links
from tfdp.tools.prediction.memory import Memory, memory_of, ranks_to_fit
from tfdp.tools.prediction.plans import Plan, Prediction, predict
from tfdp.tools.prediction.ranking import Limit, candidates, limits, ranked
from tfdp.tools.prediction.workload import SLOTS, GradientTensor, Normalized, Workload, even_tensors

__all__ = [
    "SLOTS",
    "ClusterModel",
    "GradientTensor",
    "Limit",
    "Memory",
    "Normalized",
    "Plan",
    "Prediction",
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
