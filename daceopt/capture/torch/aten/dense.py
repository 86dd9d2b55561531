"""Products, convolutions, and what libraries compute."""

from __future__ import annotations

from daceopt.capture.torch.table import translates
from daceopt.capture.torch.translation import Translation


@translates("linear")
def linear(t: Translation, input: str, weight: str, bias: str | None) -> str:
    product = t.operator("MatMul", input, t.transpose(weight, [1, 0]))
    return str(product if bias is None else t.operator("Add", product, bias))
