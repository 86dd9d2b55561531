"""Recipes, under the name that users' files import (a re-export)."""

from daceopt.passes.recipe import Recipe

__all__ = ["Recipe"]
