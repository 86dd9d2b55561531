"""Reverse-mode differentiation of graphs: one rule per node kind; what is stored and what is recomputed."""

from __future__ import annotations

from daceopt.autodiff.differentiate import Derivative, differentiate
from daceopt.autodiff.rules import adjoint

__all__ = ["Derivative", "adjoint", "differentiate"]
