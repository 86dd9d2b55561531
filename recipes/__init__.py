"""Recipes by name: ``get("cpu")`` and ``names()``; each file reads like a recipe."""
