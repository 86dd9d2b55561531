"""Recipes by name; each file reads like a recipe."""

from __future__ import annotations

from daceopt.passes.recipe import Recipe
from daceopt.passes.recipe import recipes as _registry

__all__ = ["Recipe", "get", "names"]


def get(name: str) -> Recipe:
    """The recipe called ``name``. Raises DaceoptError, with the names that exist, when there is none."""
    recipe: Recipe = _registry.get(name)
    return recipe


def names() -> list[str]:
    """Names of all recipes: built in, from entry points, and loaded from files."""
    return _registry.names()
