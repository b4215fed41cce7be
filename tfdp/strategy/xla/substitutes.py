"""Operations that XLA has not, in whose place a program has others that compute the same.

TensorFlow lowers no `ImageProjectiveTransformV3`, by which layers of Keras rotate, shift, shear and
zoom images, and no `StatelessRandomGammaV3`, of which `MixUp` and `CutMix` draw. In a program that
is lowered a function stands for each, in loops and branches, too, and in gradients.
"""

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base.unique_numbers import unique_number
from tfdp.strategy.xla._tensorflow import known_by_name
from tfdp.strategy.xla.projections import Fill, Interpolation, projected


def is_stood_for(type_: str) -> bool:
    """Returns whether operations of a type have a function that stands for them.

    >>> is_stood_for("ImageProjectiveTransformV3"), is_stood_for("StringSplit")
    (True, False)
    """
    return type_ in _STAND_INS


@contextlib.contextmanager
def written(
    source: tf.types.experimental.ConcreteFunction, specs: Sequence[tf.TensorSpec]
) -> Iterator[tf.types.experimental.ConcreteFunction]:
    """Yields a trace in which functions stand for such operations: it can be lowered within.

    Args:
      source: The trace of what is to be compiled.
      specs: The specifications of its arguments.
    """
    definition = source.graph.as_graph_def()
    made: dict[str, Any] = {}
    _stand(definition.node, made)
    for each in definition.library.function:
        calls = _stand(each.node_def, made)
        for node in each.node_def:
            node.input[:] = [_named(value, calls) for value in node.input]
        for name, value in each.ret.items():
            each.ret[name] = _named(value, calls)
    if not made:
        yield source
        return
    _rename_functions(definition)
    own_functions = list(definition.library.function)
    for each in made.values():
        inner = each.graph.as_graph_def().library.function
        definition.library.function.extend([*inner, each.function_def])
    given = [tensor.name for tensor in source.inputs]
    own = {tensor.op.name for tensor in source.inputs}
    others = [node for node in definition.node if node.name not in own]
    for node in others:  # arguments are there before all
        node.input[:] = [each for each in node.input if each[0] != "^" or each[1:] not in own]
    used = {each.split(":")[0] for node in others for each in node.input}
    del definition.node[:]
    definition.node.extend(others)
    outputs = [tensor.name for tensor in source.outputs if tensor is not None]

    def with_stand_ins(*arguments: tf.Tensor) -> list[tf.Tensor]:
        graph: Any = tf.compat.v1.get_default_graph()
        tensors = [*arguments, *map(graph.capture, source.captured_inputs)]
        values = dict(zip(given, tensors, strict=True))
        made_here = [name for name in outputs if name not in values]
        read = {name: each for name, each in values.items() if name.split(":")[0] in used}
        found = tf.graph_util.import_graph_def(definition, read, made_here, name="")
        values |= dict(zip(made_here, found, strict=True))
        return [values[name] for name in outputs]

    compiled = tf.function(with_stand_ins, jit_compile=True, autograph=False)
    with known_by_name(own_functions):
        yield compiled.get_concrete_function(*specs)


def _stand(nodes: Iterable[tf.compat.v1.NodeDef], made: dict[str, Any]) -> set[str]:
    """Makes calls of operations that are stood for, and returns their names.

    Args:
      nodes: Operations, of a graph or of a function.
      made: The functions that are called, which is added to.
    """
    names = set()
    for node in nodes:
        if node.op not in _STAND_INS:
            continue
        function = _STAND_INS[node.op](node)
        name = function.function_def.signature.name
        made[name] = function
        node.op = "PartitionedCall"
        for attr in list(node.attr):
            if not attr.startswith("_"):
                del node.attr[attr]
        signature = function.function_def.signature
        node.attr["Tin"].list.type.extend(each.type for each in signature.input_arg)
        node.attr["Tout"].list.type.extend(each.type for each in signature.output_arg)
        node.attr["f"].func.name = name
        names.add(node.name)
    return names


def _rename_functions(definition: tf.compat.v1.GraphDef) -> None:
    """Gives functions other names: TensorFlow goes on with what it knows by theirs."""
    library, suffix = definition.library, f"_stand_ins_{unique_number()}"
    names = {each.signature.name for each in library.function}
    nodes = [*definition.node, *(node for each in library.function for node in each.node_def)]
    for node in nodes:
        for attr in node.attr.values():
            for called in (attr.func, *attr.list.func):
                if called.name in names:
                    called.name += suffix
        if node.op in names:
            node.op += suffix
    for each in library.function:
        each.signature.name += suffix
    for each in library.gradient:
        each.function_name += suffix
        each.gradient_func += suffix


def _named(value: str, names: set[str]) -> str:
    """Returns how a function names the output of an operation, after it has become a call."""
    node, *_ = value.split(":")
    return re.sub(r":\w+:", ":output:", value) if node in names else value


def _projected(node: tf.compat.v1.NodeDef) -> Any:
    return _projection(
        tf.as_dtype(node.attr["dtype"].type),
        node.attr["interpolation"].s.decode(),
        node.attr["fill_mode"].s.decode(),
    )


@functools.cache
def _projection(dtype: tf.DType, interpolation: Interpolation, fill: Fill) -> Any:
    function = tf.function(
        functools.partial(projected, interpolation=interpolation, fill=fill), autograph=False
    )
    return function.get_concrete_function(
        tf.TensorSpec([None, None, None, None], dtype),
        tf.TensorSpec([None, 8]),
        tf.TensorSpec([2], tf.int32),
        tf.TensorSpec([]),
    )


def _gamma(node: tf.compat.v1.NodeDef) -> Any:
    return _gamma_draw(
        tf.as_dtype(node.attr["dtype"].type), tf.as_dtype(node.attr["shape_dtype"].type)
    )


@functools.cache
def _gamma_draw(dtype: tf.DType, dtype_of_shape: tf.DType) -> Any:
    def function(
        shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor, alg: tf.Tensor, alpha: tf.Tensor
    ) -> tf.Tensor:
        return gamma_drawn(tf.cast(shape, tf.int32), key, counter, alg, alpha)

    return tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec([None], dtype_of_shape),
        tf.TensorSpec([1], tf.uint64),
        tf.TensorSpec([None], tf.uint64),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec(None, dtype),
    )


_STAND_INS: dict[str, Callable[[tf.compat.v1.NodeDef], Any]] = {
    "ImageProjectiveTransformV3": _projected,
    "StatelessRandomGammaV3": _gamma,
}


# How many candidates are drawn for each number. One is rejected by a chance below 0.05, so all are
# by one of 2e-16; then the number is 0.
_TRIES = 12


def gamma_drawn(
    shape: tf.Tensor, key: tf.Tensor, counter: tf.Tensor, algorithm: tf.Tensor, alpha: tf.Tensor
) -> tf.Tensor:
    """Returns what `tf.raw_ops.StatelessRandomGammaV3` does, by draws of normals and uniforms.

    As other draws that XLA makes, the numbers are not those of TensorFlow's own kernel. Marsaglia
    and Tsang, A Simple Method for Generating Gamma Variables (2000): of a normal x and a uniform u,
    d (1 + c x)^3 is taken where log u < x^2 / 2 + d (1 - v + log v). Cost: 25 draws for a number,
    of which all are in memory.

    Args:
      shape: The shape of the result, which ends with that of `alpha`.
      key: The key of the generator, [1], uint64.
      counter: Its counter, uint64.
      algorithm: Which generator it is.
      alpha: The shapes of the distributions, whose scale is 1.

    >>> seed = tf.constant([1], tf.uint64), tf.constant([0, 0], tf.uint64), tf.constant(1)
    >>> found = gamma_drawn(tf.constant([9, 2]), *seed, tf.constant([0.5, 80.0]))
    >>> found.shape.as_list(), bool(tf.reduce_all(found[:, 0] < found[:, 1]))
    ([9, 2], True)
    """
    dtype = tf.float64 if alpha.dtype == tf.float64 else tf.float32
    given = tf.cast(alpha, dtype)
    # Of alpha + 1 a draw times u^(1 / alpha) is one of alpha.
    is_small = given < 1.0
    d = tf.where(is_small, given + 1.0, given) - 1.0 / 3.0
    x = tf.raw_ops.StatelessRandomNormalV2(
        shape=tf.concat([[_TRIES], shape], 0), key=key, counter=counter, alg=algorithm, dtype=dtype
    )
    used = tf.cast(tf.size(x), tf.uint64) * tf.one_hot(0, tf.size(counter), dtype=tf.uint64)
    uniform = 1.0 - tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.concat([[_TRIES + 1], shape], 0),
        key=key,
        counter=counter + used,
        alg=algorithm,
        dtype=dtype,
    )
    v = (1.0 + x / (3.0 * tf.sqrt(d))) ** 3
    is_positive = v > 0.0
    bound = 0.5 * x**2 + d * (1.0 - v + tf.math.log(tf.where(is_positive, v, 1.0)))
    is_taken = tf.cast(is_positive & (tf.math.log(uniform[:_TRIES]) < bound), tf.int32)
    is_first = (is_taken == 1) & (tf.cumsum(is_taken) == 1)
    found = tf.reduce_sum(tf.where(is_first, v, 0.0), axis=0)
    scale = tf.where(is_small, uniform[_TRIES] ** (1.0 / given), 1.0)
    return tf.cast(d * found * scale, alpha.dtype)
