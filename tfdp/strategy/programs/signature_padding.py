"""Functions that each replica has of its own, made to take as many tensors from outside as others.

A program calls a collective with the tensors that it captures, of each replica its own. Where
replicas hold different variables, as of an optimizer of which each keeps some, their functions
capture other numbers of tensors. Then those of each dtype are brought to the same places, and where
one replica has fewer, it is given one of its own again, which it does not use.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdp.strategy._tensorflow_programs import FunctionDef


def alike(
    functions: Sequence[tf.types.experimental.ConcreteFunction],
) -> tuple[list[FunctionDef], list[list[tf.Tensor]]]:
    """Returns the functions' definitions, and what they capture, of the same dtypes in order.

    Args:
      functions: A function of each local replica.
    """
    definitions = [function.function_def for function in functions]
    captured = [list(function.captured_inputs) for function in functions]
    kinds = [[tensor.dtype for tensor in each] for each in captured]
    if all(each == kinds[0] for each in kinds):
        return definitions, captured
    dtypes = list(dict.fromkeys(dtype for each in kinds for dtype in each))
    most = {dtype: max(each.count(dtype) for each in kinds) for dtype in dtypes}
    found, given = [], []
    for definition, own in zip(definitions, captured, strict=True):
        changed, tensors = _with(definition, own, most)
        found.append(changed)
        given.append(tensors)
    return found, given


def _with(
    definition: FunctionDef, own: Sequence[tf.Tensor], most: dict[tf.DType, int]
) -> tuple[FunctionDef, list[tf.Tensor]]:
    """Returns a function that takes so many captured tensors of each dtype, and these."""
    copy = FunctionDef()
    copy.CopyFrom(definition)
    copy.signature.name += "_alike"
    begin = len(definition.signature.input_arg) - len(own)
    del copy.signature.input_arg[begin:]
    for index in [index for index in copy.arg_attr if index >= begin]:
        del copy.arg_attr[index]
    tensors: list[tf.Tensor] = []
    for dtype, count in most.items():
        places = [index for index, tensor in enumerate(own) if tensor.dtype == dtype]
        for place in places:
            if begin + place in definition.arg_attr:
                at = len(copy.signature.input_arg)
                copy.arg_attr[at].CopyFrom(definition.arg_attr[begin + place])
            argument = definition.signature.input_arg[begin + place]
            copy.signature.input_arg.add().CopyFrom(argument)
            tensors.append(own[place])
        for number in range(count - len(places)):
            name = f"unused_{dtype.name}_{number}"
            copy.signature.input_arg.add(name=name, type=dtype.as_datatype_enum)
            tensors.append(own[places[0]] if places else tf.zeros([], dtype))
    return copy, tensors
