"""A recipe whose operators are fused as a strategy says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daceopt.distributed.search.step_capture import RECIPE, divide
from daceopt.passes.recipe import Recipe, recipes
from daceopt.transformations.distributed.operator_grouping import OperatorGrouping

if TYPE_CHECKING:
    from daceopt.distributed.search.strategy import Strategy


def grouping(strategy: Strategy) -> OperatorGrouping:
    """The step that makes one kernel of each group of the strategy."""
    return OperatorGrouping(tuple((g.nodes, g.duplicated, g.merges) for g in strategy.groups))


def enacting(strategy: Strategy, recipe: str | Recipe = RECIPE) -> Recipe:
    """``recipe`` with the groups of ``strategy`` in the place of its own fusion; itself where the strategy has none.

    The step raises StrategyError where a group is of another graph.
    """
    if not strategy.groups:
        return recipes.get(recipe) if isinstance(recipe, str) else recipe
    before, _, after = divide(recipe)
    name = recipe if isinstance(recipe, str) else recipe.name
    return Recipe(f"{name} with a strategy", (*before, grouping(strategy), *after))
