"""PyTorch's own forms of operators in Python: decompositions, element types and strides of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from daceopt.torch_internals.release import private_names

with private_names():
    from torch._decomp import core_aten_decompositions as core_aten_decompositions
    from torch._decomp.decompositions import max_unpool2d as max_unpool2d
    from torch._decomp.decompositions import max_unpool3d as max_unpool3d
    from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
    from torch._prims_common import (
        compute_elementwise_output_logical_to_physical_perm as compute_elementwise_output_logical_to_physical_perm,
    )
    from torch._prims_common import compute_elementwise_output_strides as compute_elementwise_output_strides
    from torch._prims_common import suggest_memory_format as suggest_memory_format
    from torch._subclasses.fake_impls import _deregister_op_impl, op_implementations_dict, register_op_impl
    from torch.export.exported_program import _override_composite_implicit_decomp as override


def promoted_type(operands: Sequence[object]) -> torch.dtype:
    """The type in which ATen compares operands: numbers and tensors without axes give way."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_dtypes(*operands, type_promotion_kind=kind)[1]


@dataclass(frozen=True)
class _Whole:
    """What PyTorch registers for an operator that is to be traced as ``form``."""

    form: object
    before: dict[Any, Any]
    kernels: dict[Any, Any]
    fake_rule: Any


_whole: dict[Any, _Whole] = {}


@contextmanager
def whole_operators(instead: Mapping[Any, Any]) -> Iterator[None]:
    """A block in which these operators, which consist of others, are traced as what ``instead`` has for each.

    PyTorch makes twenty kernels for each operator, which takes milliseconds: those of the first such block serve
    later ones, too, as long as the operator has the same kernels otherwise.
    """
    if not all(_is_known(operator, form) for operator, form in instead.items()):
        _learn(instead)
    entered = [operator for operator in instead if operator.py_kernels == _whole[operator].before]  # not nested
    for operator in entered:
        register_op_impl(operator)(_whole[operator].fake_rule)
        _exchange_kernels(operator, _whole[operator].kernels)
    try:
        yield
    finally:
        for operator in entered:
            _exchange_kernels(operator, _whole[operator].before)
            _deregister_op_impl(operator)


def _is_known(operator: Any, form: object) -> bool:
    whole = _whole.get(operator)
    return whole is not None and whole.form is form and operator.py_kernels in (whole.before, whole.kernels)


def _learn(instead: Mapping[Any, Any]) -> None:
    before = {operator: dict(operator.py_kernels) for operator in instead}
    with override(dict(instead)):
        for operator, form in instead.items():
            kernels, rule = dict(operator.py_kernels), op_implementations_dict[operator]
            _whole[operator] = _Whole(form, before[operator], kernels, rule)


def _exchange_kernels(operator: Any, kernels: Mapping[Any, Any]) -> None:
    operator.py_kernels.clear()
    operator.py_kernels.update(kernels)
    operator._dispatch_cache.clear()
