"""The private names of TensorFlow that the partitioner stands on are what it expects."""

import tensorflow as tf

from tfdp.partition import _tensorflow as names


def traced():
    @tf.function
    def function(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2, lambda: x)

    return function.get_concrete_function(tf.TensorSpec([None, 3])).graph


def test_a_graph_gives_its_operations_with_shapes_and_its_functions_by_name():
    graph = traced()
    assert isinstance(graph, names.FuncGraph)
    (branch,) = [
        node for node in graph.as_graph_def(add_shapes=True).node if node.op.endswith("If")
    ]
    assert isinstance(branch, names.NodeDef)
    assert [dim.size for dim in branch.attr["_output_shapes"].list.shape[0].dim] == [-1, 3]
    then = names.function_named(graph, branch.attr["then_branch"].func.name)
    assert isinstance(then.graph, names.FuncGraph)
    assert names.function_named(graph, "no such function") is None


def test_declarations_tell_outputs_and_effects():
    split = names.op_def_registry.get("Split")
    assert [arg.number_attr for arg in split.output_arg] == ["num_split"]
    assert names.op_def_registry.get("PrintV2").is_stateful
    assert not names.op_def_registry.get("MatMul").is_stateful


def test_a_function_that_is_written_is_run():
    definition = names.FunctionDef()
    definition.signature.name = "written_by_a_test"
    definition.signature.input_arg.add(name="x", type=tf.float32.as_datatype_enum)
    definition.signature.output_arg.add(name="y", type=tf.float32.as_datatype_enum)
    node = definition.node_def.add(name="square", op="Square", input=["x"])
    node.attr["T"].CopyFrom(names.AttrValue(type=tf.float32.as_datatype_enum))
    definition.ret["y"] = "square:y:0"
    names.context().add_function_def(definition)
    try:
        (found,) = names.context().call_function(b"written_by_a_test", [tf.constant(3.0)], 1)
        assert float(found) == 9.0
    finally:
        names.context().remove_function("written_by_a_test")
    assert names.make_tensor_proto([1, 2]).tensor_shape.dim[0].size == 2
