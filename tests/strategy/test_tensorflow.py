"""The private names of TensorFlow that the strategy stands on are where and what it expects."""

import ast
import inspect
import pathlib

import pytest
import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops, distribute_lib, mirrored_run

from tfdp.data.distributed import _tensorflow as of_datasets
from tfdp.data.distributed.dataset_distribution import DatasetDistribution
from tfdp.strategy import _tensorflow
from tfdp.strategy.cross_replica import CrossReplica
from tfdp.strategy.extended import DataParallelExtended

# For each name the parameters that the strategy passes or overrides, in their order.
SIGNATURES = {
    "GraphOrParentsInXlaContext": ["graph"],
    "ReductionToOneDevice": ["self", "reduce_to_device", "accumulation_fn"],
    "SingleDevice": None,
    "compute_batch_size": ["dataset"],
    "control_status_ctx": [],
    "create_mirrored_variable": [
        "strategy",
        "real_mirrored_creator",
        "class_mapping",
        "policy_mapping",
        "kwargs",
    ],
    "get_distributed_dataset": [
        "dataset",
        "input_workers",
        "strategy",
        "num_replicas_in_sync",
        "input_context",
        "options",
        "build",
        "replica_order",
    ],
    "get_distributed_datasets_from_function": [
        "dataset_fn",
        "input_workers",
        "input_contexts",
        "strategy",
        "options",
        "build",
        "replica_order",
    ],
    "get_update_replica_id": [],
    "in_save_context": [],
    "regroup": ["values", "wrap_class", "always_wrap"],
    "tf_convert": ["f", "ctx", "convert_by_default", "user_requested"],
}

CLASSES = {
    "CheckpointInitialValue": (),
    "DistributedDataset": (tf.distribute.DistributedDataset,),
    "DistributedDatasetSpec": (tf.TypeSpec,),
    "DistributedIterator": (tf.distribute.DistributedIterator,),
    "DistributedIteratorSpec": (tf.TypeSpec,),
    "DistributedValues": (tf.distribute.DistributedValues,),
    "DistributedVariable": (tf.distribute.DistributedValues,),
    "Function": (),
    "Mirrored": (tf.distribute.DistributedValues,),
    "MirroredExtended": (tf.distribute.StrategyExtended,),
    "MirroredVariable": (tf.distribute.DistributedValues, tf.Variable),
    "PerReplica": (tf.distribute.DistributedValues,),
    "PerReplicaSpec": (tf.TypeSpec,),
    "SyncOnReadVariable": (tf.distribute.DistributedValues, tf.Variable),
    "UninitializedVariable": (tf.Variable,),
}

ATTRIBUTES = {"aggregation_of_variable"}

SPEC_PARAMETERS = [
    "self",
    "input_workers",
    "element_spec",
    "strategy",
    "options",
    "cardinality",
    "enable_get_next_as_optional",
    "replica_order",
]

# What `DataParallelExtended` and `ReplicatedVariable` override, or call on `super()`.
METHODS = {
    "MirroredExtended": {
        "__init__": ["self", "container_strategy", "devices", "cross_device_ops"],
        "_batch_reduce_to": ["self", "reduce_op", "value_destination_pairs", "options"],
        "_broadcast_to": ["self", "tensor", "destinations"],
        "_call_for_each_replica": ["self", "fn", "args", "kwargs"],
        "_configure": ["self", "session_config", "cluster_spec", "task_type", "task_id"],
        "_create_variable": ["self", "next_creator", "kwargs"],
        "_experimental_distribute_dataset": ["self", "dataset", "options"],
        "_distribute_datasets_from_function": ["self", "dataset_fn", "options"],
        "_experimental_distribute_values_from_function": ["self", "value_fn"],
        "_gather_to_implementation": ["self", "value", "destinations", "axis", "options"],
        "_get_local_replica_id": ["self", "replica_id_in_sync_group"],
        "_get_replica_id_in_sync_group": ["self", "replica_id"],
        "_in_multi_worker_mode": ["self"],
        "_get_variable_creator_initial_value": [
            "self",
            "replica_id",
            "device",
            "primary_var",
            "kwargs",
        ],
        "_input_workers_with_options": ["self", "options"],
        "_make_collective_ops_with_fallbacks": ["self"],
        "_make_dataset_iterator": ["self", "dataset"],
        "_make_input_fn_iterator": ["self", "input_fn", "replication_mode"],
        "_reduce_to": ["self", "reduce_op", "value", "destinations", "options"],
        "_replica_ctx_all_reduce": ["self", "reduce_op", "value", "options"],
        "_update": ["self", "var", "fn", "args", "kwargs", "group"],
        "_use_merge_call": ["self"],
        "colocate_vars_with": ["self", "colocate_with_variable"],
        "update": ["self", "var", "fn", "args", "kwargs", "group"],
    },
    "DistributedDataset": {
        "__init__": [
            "self",
            "input_workers",
            "strategy",
            "dataset",
            "num_replicas_in_sync",
            "input_context",
            "components",
            "element_spec",
            "enable_get_next_as_optional",
            "build",
            "options",
            "replica_order",
        ],
        "__iter__": ["self"],
    },
    "DistributedDatasetSpec": {
        "__init__": SPEC_PARAMETERS,
        "_from_components": ["self", "components"],
    },
    "DistributedIterator": {
        "__init__": [
            "self",
            "input_workers",
            "iterators",
            "strategy",
            "components",
            "element_spec",
            "cardinality",
            "enable_get_next_as_optional",
            "options",
            "replica_order",
        ],
        "get_next": ["self", "name"],
        "get_next_as_optional": ["self"],
    },
    "DistributedIteratorSpec": {
        "__init__": SPEC_PARAMETERS,
        "_from_components": ["self", "components"],
    },
    "MirroredVariable": {
        "_get_on_device_or_primary": ["self"],
        "_update_replica": ["self", "update_fn", "value", "kwargs"],
    },
    "SyncOnReadVariable": {
        "_gather_saveables_for_checkpoint": ["self"],
        "_get_cross_replica": ["self"],
        "assign": ["self", "value", "use_locking", "name", "read_value"],
        "value": ["self"],
    },
    "Function": {"_clone": ["self", "python_function"]},
    "PerReplica": {"__init__": ["self", "values"]},
    "PerReplicaSpec": {"__init__": ["self", "value_specs"]},
}


SHIMS = (_tensorflow, of_datasets)


def private(name):
    (value, *_) = [getattr(shim, name) for shim in SHIMS if hasattr(shim, name)]
    return value


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_every_private_name_has_a_row_here():
    others = {"VARIABLE_POLICY_MAPPING", "input_lib", "multi_device_iterator_ops"}
    every = {name for shim in SHIMS for name in shim.__all__}
    assert every == set(SIGNATURES) | set(CLASSES) | ATTRIBUTES | others
    for shim in SHIMS:
        tree = ast.parse(pathlib.Path(shim.__file__).read_text(encoding="utf-8"))
        imported = [
            alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        ]
        own = {name for name in ATTRIBUTES if hasattr(shim, name)}
        assert sorted({*imported, *own} - {"Attribute"}) == sorted(shim.__all__)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_private_function_takes_what_the_strategy_passes(name):
    value = private(name)
    if SIGNATURES[name] is None:
        assert inspect.isclass(value)
        assert value("/device:CPU:0").device == "/device:CPU:0"
    else:
        function = value.__init__ if inspect.isclass(value) else value
        assert parameters(function) == SIGNATURES[name]


@pytest.mark.parametrize("name", CLASSES)
def test_a_private_class_is_what_the_strategy_takes_it_for(name):
    value = private(name)
    assert inspect.isclass(value)
    assert all(issubclass(value, base) for base in CLASSES[name])


@pytest.mark.parametrize(
    ("owner", "method"), [(owner, method) for owner in METHODS for method in METHODS[owner]]
)
def test_a_private_method_takes_what_the_strategy_passes(owner, method):
    assert parameters(getattr(private(owner), method)) == METHODS[owner][method]


def test_the_function_that_tf_function_makes_is_of_the_private_class():
    assert isinstance(tf.function(lambda: None), _tensorflow.Function)
    assert tf.function(test_every_private_name_has_a_row_here).python_function is (
        test_every_private_name_has_a_row_here
    )


def test_a_scope_makes_its_variables_by_the_policies_that_it_is_given():
    assert set(_tensorflow.VARIABLE_POLICY_MAPPING) >= {
        tf.VariableSynchronization.ON_WRITE,
        tf.VariableSynchronization.ON_READ,
    }


def test_the_replicas_threads_say_whether_they_run_eagerly():
    assert "in_eager" in mirrored_run._MirroredReplicaThread.__init__.__code__.co_names


def test_replicas_without_merge_call_reduce_and_update_by_themselves():
    context = distribute_lib.ReplicaContext
    assert "_replica_ctx_all_reduce" in inspect.getsource(context.all_reduce)
    assert "_replica_ctx_update" in inspect.getsource(context._update)
    assert parameters(cross_device_ops.CrossDeviceOps.reduce)[:4] == [
        "self",
        "reduce_op",
        "per_replica_value",
        "destinations",
    ]


def test_only_these_modules_of_the_strategy_import_private_names():
    folder = pathlib.Path(_tensorflow.__file__).parent
    for path in folder.glob("*.py"):
        imports_private = "tensorflow.python" in path.read_text(encoding="utf-8")
        assert imports_private == (path.name in ("_tensorflow.py", "_tensorflow_programs.py")), (
            path.name
        )


def test_the_strategy_overrides_only_names_that_tensorflow_still_has():
    check_overridden(DataParallelExtended, {"should_checkpoint", "should_save_summary"})
    check_overridden(CrossReplica, {"worker_devices_by_replica"})
    of_data = {"_num_replicas_in_sync", "experimental_between_graph"}
    check_overridden(DatasetDistribution, of_data)


class Empty:
    """Has what Python gives every class: from 3.13 on the line where it begins, for instance."""


def check_overridden(extended, properties):
    own = {"replicas", "processes", "topology", "num_replicas", "first_rank", "shards"}
    for name in vars(extended):
        if name in METHODS["MirroredExtended"]:
            assert hasattr(_tensorflow.MirroredExtended, name)
    overridden = {n for n in vars(extended) if hasattr(_tensorflow.MirroredExtended, n)}
    every_class_has = {*dir(type), "__annotations__", *vars(Empty)}
    expected = set(METHODS["MirroredExtended"]) | every_class_has | properties
    assert overridden <= expected, overridden - expected
    assert not {n for n in own if hasattr(_tensorflow.MirroredExtended, n)}
