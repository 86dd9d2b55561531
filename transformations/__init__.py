"""Transformations by name; one file and one class each, in one folder per level."""

from __future__ import annotations

from daceopt.passes.loading import load_file
from daceopt.passes.transform import NearMiss, Site, Transformation
from daceopt.passes.transform import transformations as _registry

__all__ = ["NearMiss", "Site", "Transformation", "get", "load_file", "names"]


def get(name: str, **options: object) -> Transformation:
    """The transformation called ``name`` with ``options``. Raises DaceoptError when either does not exist."""
    transformation: Transformation = _registry.get(name).with_options(options)
    return transformation


def names() -> list[str]:
    """Names of all transformations: built in, from entry points, and loaded from files."""
    return _registry.names()
