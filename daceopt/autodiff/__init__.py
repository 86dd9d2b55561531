"""Reverse-mode differentiation of a graph: one rule per node kind, and the choice of what to store and what to recompute."""

from __future__ import annotations

from daceopt.autodiff.differentiate import Derivative, differentiate
from daceopt.autodiff.rules import adjoint

__all__ = ["Derivative", "adjoint", "differentiate"]
