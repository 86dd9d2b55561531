"""What normalizations give is computed again from what they read and from their statistics."""

from __future__ import annotations

from typing import Any

import dace
import numpy as np
import pytest
import sympy
import torch
from torch.nn import functional

from daceopt.ir.nodes.builder import Builder
from tests.autodiff.checking import Problem, check

EPS = 2.0**-17  # a float, as the attribute is
CASES: dict[str, tuple[dict[str, Any], int, Any]] = {
    "LayerNormalization": (
        {"axis": 1, "epsilon": EPS},
        12,
        lambda x, s, b: functional.layer_norm(x, x.shape[1:], s, b, EPS),
    ),
    "RMSNormalization": ({"axis": 2, "epsilon": EPS}, 3, lambda x, s, b: functional.rms_norm(x, x.shape[2:], s, EPS)),
    "GroupNormalization": (
        {"num_groups": 2, "epsilon": EPS},
        4,
        lambda x, s, b: functional.group_norm(x, 2, s, b, EPS),
    ),
    "InstanceNormalization": (
        {"epsilon": EPS},
        4,
        lambda x, s, b: functional.instance_norm(x, weight=s, bias=b, eps=EPS),
    ),
    "BatchNormalization": (
        {"training_mode": 1, "epsilon": EPS},
        4,
        lambda x, s, b: functional.batch_norm(x, None, None, s, b, training=True, eps=EPS),
    ),
}


@pytest.mark.parametrize("op_type", CASES)
def test_element_wise_readers_store_no_result(op_type: str) -> None:
    """x (5, 4, 3) is a product, so it is stored; the derivative of the sine reads the normalized values."""
    attributes, width, normalized = CASES[op_type]
    shape = (4, 3) if op_type == "LayerNormalization" else (width,)

    def build(b: Builder, x: str, w: str, scale: str, bias: str) -> str:
        graph, h = b.graph, b.matmul(x, w)
        y = graph.add_array("y", graph.shape(h), dace.float64)
        more = [b.full((width,), k, dace.float64) for k in (0, 1)] if op_type == "BatchNormalization" else []
        operands = [h, scale] if op_type == "RMSNormalization" else [h, scale, bias, *more]
        graph.add_operator(op_type, operands, [y], attributes, version=18 if op_type == "GroupNormalization" else None)
        if op_type == "RMSNormalization":
            y = str(b.elementwise(lambda v, c: v + 0 * c, y, bias))
        return str(b.elementwise(sympy.sin, y))

    def reference(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        return torch.sin(normalized(x @ w, scale, bias))

    recomputed, stored = check(build, reference, (5, 4, 6), (6, 3), shape, shape)
    large = [n for n in recomputed.saved if recomputed.forward.size(n) == 60]
    assert len(large) == 1 and len(recomputed.saved) <= 3
    assert len([n for n in stored.saved if stored.forward.size(n) == 60]) > 1


def test_a_product_reads_the_stored_result() -> None:
    def build(b: Builder, x: str, w: str, scale: str) -> str:
        y = b.graph.add_array("y", b.graph.shape(x), dace.float64)
        b.graph.add_operator("LayerNormalization", [x, scale], [y], {"axis": -1})
        return str(b.matmul(y, w))

    problem = Problem(build, [(5, 6), (6, 3), (6,)])
    derivative = problem.derive()
    assert "y" in {n.split("_")[0] for n in derivative.saved}
    done, found = problem.execute(derivative, {problem.graph.outputs[0]: np.ones((5, 3))})
    assert all(g is not None and np.isfinite(g).all() for g in found.values()) and done
