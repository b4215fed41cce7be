"""TensorFlow's descriptions of a cluster: `TF_CONFIG`, as Kubeflow and clouds set it; resolvers.

The ranks are those of its jobs and tasks: the chief is rank 0, the workers follow.
"""

import json
from collections.abc import Mapping, MutableMapping
from typing import Any

from tfdp.cluster.spec import Cluster, check_distinct
from tfdp.errors import ClusterError

VARIABLE = "TF_CONFIG"

_SHOWN_CHARACTERS = 400

_FORM = (
    'Write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, '
    "the index each process' own."
)

SOURCE = "cluster_resolver"

CHIEF, WORKER = "chief", "worker"

_ALIASES = {"master": CHIEF}

_OTHER_ROLES = ("ps", "evaluator")

_MAX_DIGITS = 9  # of an index


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


def from_resolver(resolver: Any) -> Cluster:
    """Returns the cluster that a resolver describes; one process if it describes none.

    Args:
      resolver: Has `cluster_spec()`, `task_type` and `task_id`, as TensorFlow's resolvers do. It is
        asked once: a later change of the cluster goes unseen.

    Raises:
      TypeError: `resolver` is not a resolver.
      ClusterError: Its jobs and task do not fit data-parallel training; see `from_jobs`.

    >>> import types
    >>> spec = types.SimpleNamespace(as_dict=lambda: {"worker": ["a:1", "b:1"]})
    >>> resolver = types.SimpleNamespace(cluster_spec=lambda: spec, task_type="worker", task_id=1)
    >>> print(from_resolver(resolver))
    rank 1 of 2 (cluster_resolver)
    """
    missing = [
        name for name in ("cluster_spec", "task_type", "task_id") if not hasattr(resolver, name)
    ]
    if missing:
        raise TypeError(
            "`cluster_resolver` must be a `tf.distribute.cluster_resolver.ClusterResolver`, but "
            f"received {resolver!r}, which has no {', '.join(f'`{name}`' for name in missing)}. "
            "Pass for example `SimpleClusterResolver(tf.train.ClusterSpec({'worker': [...]}), "
            "task_type='worker', task_id=0)`."
        )
    spec = resolver.cluster_spec()
    jobs = {} if spec is None else spec.as_dict()
    if not any(jobs.values()):
        return Cluster.single(SOURCE)
    return from_jobs(jobs, resolver.task_type, resolver.task_id, SOURCE)


def from_jobs(
    jobs: Mapping[str, Any], task_type: object, task_index: object, source: str
) -> Cluster:
    """Returns the cluster of a job-to-addresses mapping, as one of its tasks sees it.

    Args:
      jobs: The addresses of each job: a list, or a mapping from the task's index. Not empty.
      task_type: The job of this process. "master" means "chief", as in TensorFlow.
      task_index: The index of this process in its job.
      source: What described the jobs: "TF_CONFIG" or "cluster_resolver".

    Raises:
      ClusterError: There are other jobs than these two, or the task is in neither, or an address is
        malformed or occurs twice.

    >>> print(from_jobs({"chief": ["a:1"], "worker": ["b:1"]}, "worker", 0, "TF_CONFIG"))
    rank 1 of 2 (TF_CONFIG)
    """
    _refuse_other_task(task_type, source)
    tasks = _tasks(jobs, source)
    job = _own_job(task_type, tasks, source)
    index = _own_index(task_index, job, len(tasks[job]), source)
    rank = index if job == CHIEF else len(tasks.get(CHIEF, ())) + index
    addresses = (*tasks.get(CHIEF, ()), *tasks.get(WORKER, ()))
    check_distinct(addresses, f"Rank {rank}: `{source}`")
    if len(addresses) == 1:
        return Cluster.single(source, job)
    return Cluster(rank, len(addresses), addresses[0], addresses, source, job)


def _refuse_other_task(task_type: object, source: str) -> None:
    if task_type in _OTHER_ROLES:
        raise ClusterError(
            f"`{source}` must make this process a chief or a worker, but its task type is "
            f"{task_type!r}: data-parallel training has none. Start no such task; evaluate with "
            "`model.fit(..., validation_data=...)` or `model.evaluate`."
        )


def _tasks(jobs: Mapping[str, Any], source: str) -> dict[str, tuple[str, ...]]:
    """Returns the jobs that have tasks, by their canonical names, each with its addresses."""
    tasks: dict[str, tuple[str, ...]] = {}
    for name, entries in jobs.items():
        job = _ALIASES.get(name, name)
        if job not in (CHIEF, WORKER):
            if not entries:
                continue
            raise ClusterError(
                f"`{source}` must have no jobs but chief and worker, but its cluster has "
                f"{name!r}: {entries!r}. Data-parallel training has no {name!r} tasks; leave "
                "that job out."
            )
        if job in tasks:
            raise ClusterError(
                f"`{source}` must name its chief once, but its cluster has both 'chief' and "
                f"'master': {dict(jobs)!r}. Keep one of them."
            )
        if addresses := _addresses(name, entries, source):
            tasks[job] = addresses
    if len(tasks.get(CHIEF, ())) > 1:
        raise ClusterError(
            f"`{source}` must have one chief, but its cluster has {len(tasks[CHIEF])}: "
            f"{list(tasks[CHIEF])}. List the others as 'worker'."
        )
    return tasks


def _addresses(job: str, entries: Any, source: str) -> tuple[str, ...]:
    if isinstance(entries, Mapping):
        by_index = {str(index): address for index, address in entries.items()}
        indices = [str(index) for index in range(len(by_index))]
        if set(by_index) != set(indices):
            raise ClusterError(
                f"`{source}` must list every task of job {job!r}, but has only those of index "
                f"{sorted(by_index)}. List all of them: data-parallel training needs the number "
                "of workers. (Kubeflow: set `enableDynamicWorker: false`.)"
            )
        return tuple(by_index[index] for index in indices)
    if not isinstance(entries, list | tuple):
        raise ClusterError(
            f"`{source}` must give job {job!r} a list of addresses, but gives {entries!r}. "
            f'Write "{job}": ["host:port", ...].'
        )
    return tuple(entries)


def _own_job(task_type: object, tasks: Mapping[str, tuple[str, ...]], source: str) -> str:
    if not isinstance(task_type, str) or not task_type:
        raise ClusterError(
            f"`{source}` must say which task this process is, but its task type is {task_type!r}. "
            f"{_how_to_name_the_task(source)}"
        )
    job = _ALIASES.get(task_type, task_type)
    if job not in tasks:
        raise ClusterError(
            f"`{source}` must have this process' task in its cluster, but the task type is "
            f"{task_type!r} and the cluster's jobs are {sorted(tasks)}. List the task's address in "
            "the cluster, or name one of these jobs."
        )
    return job


def _own_index(index: object, job: str, count: int, source: str) -> int:
    # TensorFlow takes "1" as well as 1.
    text = "" if isinstance(index, bool) else str(index)
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise ClusterError(
            f"`{source}` must give this process' task a whole number as index, but gives "
            f"{index!r}. {_how_to_name_the_task(source)}"
        )
    if int(text) >= count:
        raise ClusterError(
            f"`{source}` must give this process an index below the number of {job!r} tasks, "
            f"{count}, but gives {text}. Count from 0 in each job, or list the missing addresses."
        )
    return int(text)


def _how_to_name_the_task(source: str) -> str:
    if source == "TF_CONFIG":
        return 'Add "task": {"type": "worker", "index": 0}, each process its own.'
    return 'Set the resolver\'s `task_type` (as "worker") and `task_id` (from 0).'
