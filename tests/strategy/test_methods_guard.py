"""Each method of tf.distribute's strategies, and who answers it where replicas are in processes.

tfdp's classes inherit from TensorFlow's of one process. A method that TensorFlow adds, or that
nobody classified, fails here: it may know one process alone, and nothing would say so.
"""

import pathlib
import re

import pytest
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, mirrored_run, mirrored_strategy

import tfdp
from tfdp.strategy.extended import DataParallelExtended

# Inherited methods that do nothing but call others of these tables, or say what is constant.
PASSES_ON = "It calls other methods of this table, or returns a constant."
# Inherited methods that are about this process' own replicas, as they are documented.
LOCAL = "test_methods_that_know_this_process_alone_mean_its_own_replicas"

EVERYWHERE = "test_what_is_reduced_and_gathered_is_of_all_processes_wherever_it_comes_from"
SAME_DATA = "test_what_would_read_the_same_data_in_all_processes_is_refused"
OF_TENSORFLOW_1 = "test_an_optimizer_of_tensorflow_1_has_the_sum_of_all_processes"
LOOPS = "test_loops_and_arrays_of_tensorflow_1_are_shared_out_between_processes"
NUMBERED = "test_replicas_are_numbered_over_all_processes"
SLICES = "test_replicas_sum_tensors_and_slices"
REDUCED = "test_reduce_is_over_the_replicas_of_all_processes"
GATHERED = "test_gather_joins_uneven_values_in_the_order_of_replicas"
SHARES = "test_a_pipeline_gives_each_rank_its_own_shares_of_the_same_batches"
RESOLVER = "test_the_cluster_resolver_says_who_this_is"

# What tfdp answers, with a test in processes.
OWN_EXTENDED = {
    "_batch_reduce_to": EVERYWHERE,
    "_broadcast_to": EVERYWHERE,
    "_call_for_each_replica": NUMBERED,
    "_configure": SAME_DATA,
    "_create_variable": LOCAL,
    "_distribute_datasets_from_function": (
        "test_a_rank_whose_own_data_ends_first_goes_on_with_empty_batches"
    ),
    "_experimental_distribute_dataset": SHARES,
    "_experimental_distribute_values_from_function": GATHERED,
    "_gather_to_implementation": EVERYWHERE,
    "_get_local_replica_id": LOCAL,
    "_get_replica_id_in_sync_group": NUMBERED,
    "_get_variable_creator_initial_value": OF_TENSORFLOW_1,
    "_in_multi_worker_mode": NUMBERED,
    "_input_workers_with_options": SHARES,
    "_make_collective_ops_with_fallbacks": NUMBERED,
    "_make_dataset_iterator": SAME_DATA,
    "_make_input_fn_iterator": SAME_DATA,
    "_num_replicas_in_sync": NUMBERED,
    "_reduce_to": EVERYWHERE,
    "_replica_ctx_all_reduce": SLICES,
    "_update": LOCAL,
    "_use_merge_call": NUMBERED,
    "colocate_vars_with": LOCAL,
    "experimental_between_graph": NUMBERED,
    "should_checkpoint": NUMBERED,
    "should_save_summary": NUMBERED,
    "update": LOCAL,
    "worker_devices_by_replica": LOCAL,
}

# What TensorFlow answers, with a test in processes, or why there need be none.
INHERITED_EXTENDED = {
    "_allow_variable_partition": PASSES_ON,
    "_batch_gather_to": EVERYWHERE,
    "_container_strategy": PASSES_ON,
    "_default_device_scope": PASSES_ON,
    "_experimental_make_numpy_dataset": LOOPS,
    "_experimental_run_steps_on_iterator": LOOPS,
    "_gather_to": EVERYWHERE,
    "_get_cross_device_ops": "Only methods call it that tfdp answers itself.",
    "_global_batch_size": PASSES_ON,
    "_group": LOCAL,
    "_initialize_multi_worker": "Only `_configure` calls it, for what tfdp refuses.",
    "_initialize_single_worker": LOCAL,
    "_initialize_strategy": LOCAL,
    "_input_workers": PASSES_ON,
    "_local_results": LOCAL,
    "_reduce": REDUCED,
    "_replica_ctx_update": LOCAL,
    "_resource_creator_scope": PASSES_ON,
    "_scope": PASSES_ON,
    "_update_config_proto": PASSES_ON,
    "_update_non_slot": LOCAL,
    "_validate_colocate_with_variable": PASSES_ON,
    "batch_reduce_to": EVERYWHERE,
    "broadcast_to": EVERYWHERE,
    "call_for_each_replica": LOCAL,
    "experimental_make_numpy_dataset": LOOPS,
    "experimental_require_static_shapes": PASSES_ON,
    "experimental_run_steps_on_iterator": LOOPS,
    "experimental_should_init": PASSES_ON,
    "non_slot_devices": LOCAL,
    "parameter_devices": LOCAL,
    "read_var": "test_the_first_replica_s_value_of_a_variable_is_read_on_all_ranks",
    "reduce_to": EVERYWHERE,
    "update_non_slot": LOCAL,
    "value_container": LOCAL,
    "variable_created_in_scope": PASSES_ON,
    "worker_devices": LOCAL,
}

OWN_STRATEGY = {
    "gather": EVERYWHERE,
    "num_replicas_in_sync": NUMBERED,
    "reduce": EVERYWHERE,
    "run": NUMBERED,
    "scope": LOCAL,
}

INHERITED_STRATEGY = {
    "_scale_loss_for_estimator_enabled": "It is about Estimators, which TensorFlow 2 has not.",
    "cluster_resolver": RESOLVER,
    "colocate_vars_with": LOCAL,
    "configure": SAME_DATA,
    "distribute_datasets_from_function": PASSES_ON,
    "experimental_distribute_dataset": SHARES,
    "experimental_distribute_datasets_from_function": PASSES_ON,
    "experimental_distribute_values_from_function": GATHERED,
    "experimental_local_results": LOCAL,
    "experimental_make_numpy_dataset": "Of `StrategyV1` alone, which tfdp's is not.",
    "experimental_run": PASSES_ON,
    "extended": PASSES_ON,
    "group": LOCAL,
    "make_dataset_iterator": SAME_DATA,
    "make_input_fn_iterator": SAME_DATA,
    "unwrap": LOCAL,
    "update_config_proto": PASSES_ON,
}

INHERITED_CONTEXT = {
    "_merge_call": EVERYWHERE,
    "_replica_id": LOCAL,
    "_update": PASSES_ON,
    "all_gather": EVERYWHERE,
    "all_reduce": SLICES,
    "devices": LOCAL,
    "merge_call": EVERYWHERE,
    "num_replicas_in_sync": NUMBERED,
    "replica_id_in_sync_group": NUMBERED,
    "strategy": PASSES_ON,
}

TABLES = {
    "the strategy's inner part": (
        [distribute_lib.StrategyExtendedV1, mirrored_strategy.MirroredExtended],
        DataParallelExtended,
        OWN_EXTENDED,
        INHERITED_EXTENDED,
    ),
    "the strategy": (
        [tf.distribute.Strategy, distribute_lib.StrategyV1],
        tfdp.DataParallelStrategy,
        OWN_STRATEGY,
        INHERITED_STRATEGY,
    ),
    "a replica's context": (
        [tf.distribute.ReplicaContext, mirrored_run._MirroredReplicaContext],
        mirrored_run._MirroredReplicaContext,
        {},
        INHERITED_CONTEXT,
    ),
}

tables = pytest.mark.parametrize("table", TABLES)


def methods_of(classes):
    """The methods and properties of TensorFlow's classes and of those that they inherit from."""
    names = {name for cls in classes for each in cls.__mro__[:-1] for name in vars(each)}
    return {name for name in names if not re.match(r"__|_tf_api_names", name)}


def is_answered_by_tfdp(cls, name):
    owner = next((each for each in cls.__mro__ if name in vars(each)), None)
    return owner is not None and owner.__module__.startswith("tfdp.")


@tables
def test_every_method_of_tensorflow_is_classified(table):
    classes, _, own, inherited = TABLES[table]
    methods = methods_of(classes)
    assert not own.keys() & inherited.keys()
    unknown, gone = methods - (own.keys() | inherited.keys()), own.keys() | inherited.keys()
    assert not unknown, f"who answers {unknown} in processes? Test it there, and add it here"
    assert not gone - methods, f"{gone - methods} are no methods of TensorFlow's any more"


@tables
def test_tfdp_answers_what_the_tables_say_it_does(table):
    classes, cls, own, _ = TABLES[table]
    found = {name for name in methods_of(classes) if is_answered_by_tfdp(cls, name)}
    assert found == set(own)


@tables
def test_every_row_names_a_test_in_processes_or_gives_a_reason(table):
    *_, own, inherited = TABLES[table]
    tests = (pathlib.Path(__file__).parent / "in_cluster.py").read_text()
    for name, shown in (own | inherited).items():
        if shown.startswith("test_"):
            assert f"def {shown}(" in tests, name
        else:
            assert name in inherited and len(shown.split()) > 5, name
