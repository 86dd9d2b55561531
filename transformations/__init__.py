"""Transformations by name: ``get("map-fusion", ...)`` and ``names()``; one file and one class each, in level folders."""

from __future__ import annotations

from daceopt.transform import Transformation

__all__ = ["Transformation"]
