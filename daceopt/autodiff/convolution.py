"""The gradient of convolutions and their transposes: one library node for the data, one for weights and bias."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from daceopt.autodiff.activation import before_activation
from daceopt.autodiff.rules import Contributions, Grads, adjoint
from daceopt.errors import Unsupported
from daceopt.ir.nodes.builder import Builder
from daceopt.ir.nodes.library import Convolution, ConvolutionBackwardData, ConvolutionBackwardWeights


@adjoint(Convolution)
def convolution_adjoint(b: Builder, node: Convolution, grads: Grads, wrt: Collection[str]) -> Contributions:
    """dX, dW and dB by their own passes; the residual Z receives dY."""
    names = node.operands(b.graph)
    if scaled := names.keys() & {"S", "T"}:
        raise Unsupported(f"{node.label} has an epilogue of {sorted(scaled)}; differentiate before it is fused")
    g = before_activation(b, node.activation, names["Y"], grads[names["Y"]], node.slope, node.ceiling)
    window = {"strides": node.strides, "pads": node.pads, "dilations": node.dilations, "group": node.group}
    contributions: Contributions = []
    if names["X"] in wrt:
        dx = like(b, names["X"], "d_data")
        b.library(ConvolutionBackwardData, {"dY": g, "W": names["W"]}, {"dX": dx}, **window)
        contributions.append((names["X"], dx))
    contributions += _parameters(b, names, g, wrt, window)
    if names.get("Z") in wrt:
        contributions.append((names["Z"], g))
    return contributions


@adjoint(ConvolutionBackwardData)
def transposed_adjoint(b: Builder, node: ConvolutionBackwardData, grads: Grads, wrt: Collection[str]) -> Contributions:
    """Linear in both: the convolution itself, and the weights' pass over the gradient in the place of the data."""
    names = node.operands(b.graph)
    g = grads[names["dX"]]
    window = {"strides": node.strides, "pads": node.pads, "dilations": node.dilations, "group": node.group}
    contributions: Contributions = []
    if names["dY"] in wrt:
        contributions.append((names["dY"], like(b, names["dY"], "d_data")))
        b.library(Convolution, {"X": g, "W": names["W"]}, {"Y": contributions[-1][1]}, **window)
    if names["W"] in wrt:
        contributions.append((names["W"], like(b, names["W"], "d_weights")))
        b.library(ConvolutionBackwardWeights, {"X": g, "dY": names["dY"]}, {"dW": contributions[-1][1]}, **window)
    return contributions


def _parameters(
    b: Builder, names: dict[str, str], g: str, wrt: Collection[str], window: dict[str, Any]
) -> Contributions:
    """Weights by their own pass; the bias by a sum, which joins the kernel that makes dY, and rounds less than the one
    that oneDNN has beside the weights: 2e-7 of the largest element for 1.3e-5."""
    contributions: Contributions = []
    if names["W"] in wrt:
        contributions.append((names["W"], like(b, names["W"], "d_weights")))
        b.library(ConvolutionBackwardWeights, {"X": names["X"], "dY": g}, {"dW": contributions[-1][1]}, **window)
    if names.get("B") in wrt:
        axes = [k for k in range(len(b.graph.shape(g))) if k != 1]
        contributions.append((names["B"], b.reduce("sum", None, g, axes=axes, label="d_bias")))
    return contributions


def like(b: Builder, x: str, hint: str) -> str:
    """A new array with the shape, dtype and (unless ``x`` is a view) the physical layout of ``x``."""
    strides = None if b.graph.is_view(x) else b.graph.strides(x)
    return b.graph.add_array(hint, b.graph.shape(x), b.graph.dtype(x), strides or None)
