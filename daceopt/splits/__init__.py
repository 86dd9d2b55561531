"""Splitting nodes along an axis of what they write: a rule for each node kind; the results write parts of arrays."""

from daceopt.splits.rules import CannotSplit, Division, Piece, division, split, splits, why_not

__all__ = ["CannotSplit", "Division", "Piece", "division", "split", "splits", "why_not"]
