"""Splitting nodes along an axis of what they write: a rule for each node kind; the results write parts of arrays."""

from daceopt.splits.rules import (
    CannotSplit,
    Division,
    Held,
    Piece,
    division,
    places,
    replace_node,
    split,
    splits,
    why_not,
)

__all__ = [
    "CannotSplit",
    "Division",
    "Held",
    "Piece",
    "division",
    "places",
    "replace_node",
    "split",
    "splits",
    "why_not",
]
