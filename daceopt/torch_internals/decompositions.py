"""PyTorch's own forms of operators in Python: decompositions, element types and strides of results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
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
    from torch.export.exported_program import _override_composite_implicit_decomp as override


def promoted_type(operands: Sequence[object]) -> torch.dtype:
    """The type in which ATen compares operands: numbers and tensors without axes give way."""
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    return elementwise_dtypes(*operands, type_promotion_kind=kind)[1]


def whole_operators(instead: dict[Any, Any]) -> AbstractContextManager[Any]:
    """A block in which these operators, which consist of others, are traced as what ``instead`` has for each."""
    return override(instead)
