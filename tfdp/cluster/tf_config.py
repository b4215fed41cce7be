"""The cluster in `TF_CONFIG`, TensorFlow's own description, which Kubeflow and clouds set."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping

from tfdp.cluster.jobs import from_jobs
from tfdp.cluster.spec import Cluster
from tfdp.errors import ClusterError

VARIABLE = "TF_CONFIG"


def detect(environ: Mapping[str, str]) -> Cluster | None:
    """Returns the cluster in `TF_CONFIG`, or None if the variable is not set or describes none.

    Raises:
      ClusterError: The variable is not JSON, or not of TensorFlow's form, or this process is
        neither chief nor worker.

    >>> detect({"TF_CONFIG": '''{"cluster": {"worker": ["a:2222", "b:2222"]},
    ...                          "task": {"type": "worker", "index": 1}}'''}).rank
    1
    """
    text = environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ClusterError(
            f"`{VARIABLE}` must be JSON, but is {_shown(text)}: {why}. Write it with `json.dumps`, "
            "or unset it to train in one process."
        ) from error
    if not isinstance(config, dict):
        raise ClusterError(f"`{VARIABLE}` must be a JSON object, but is {_shown(text)}. {_FORM}")
    jobs = config.get("cluster")
    if jobs is not None and not isinstance(jobs, dict):
        raise ClusterError(
            f'`{VARIABLE}` must have a JSON object as "cluster", but has {jobs!r}. {_FORM}'
        )
    if not jobs or not any(jobs.values()):
        return None
    task = config.get("task")
    if not isinstance(task, dict):
        raise ClusterError(
            f'`{VARIABLE}` must say which task this process is, but its "task" is {task!r}. {_FORM}'
        )
    return from_jobs(jobs, task.get("type"), task.get("index"), VARIABLE)


def unset_if_blank(environ: MutableMapping[str, str]) -> None:
    """Removes the variable where it is blank: TensorFlow would read it as JSON, and fail.

    >>> environ = {"TF_CONFIG": " "}
    >>> unset_if_blank(environ)
    >>> environ
    {}
    """
    if not environ.get(VARIABLE, "").strip():
        environ.pop(VARIABLE, None)


def _shown(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return repr(text)
    return f"{text[:_SHOWN_CHARACTERS]!r}... ({len(text)} characters)"


_SHOWN_CHARACTERS = 400

_FORM = (
    'Write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, '
    "the index each process' own."
)
