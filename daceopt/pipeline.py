"""The way through on one page: import -> recipe (which differentiates) -> build.

None of it runs on a warm start: the fingerprint of what was captured finds the built programs in the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from daceopt.errors import UnequalLayers
from daceopt.passes import choice
from daceopt.passes.choice import Choice, recipe_for
from daceopt.passes.recipe import Recipe, recipes
from daceopt.passes.runner import Runner
from daceopt.passes.transform import DIFFERENTIATE, Transformation
from daceopt.programs.compiled import CompiledPair, Derived, Load, Source, compiled
from daceopt.store import identity
from daceopt.store.cache import key

if TYPE_CHECKING:
    import onnx

    from daceopt.codegen.bundle import Bundle
    from daceopt.ir.control.imported import Imported
    from daceopt.layers.equal_layers import EqualLayers

logger = logging.getLogger("daceopt.recipe")


def compile_graph(
    fingerprint: str, load: Load, *, recipe: str | Recipe = "auto", verify: str | None = None
) -> CompiledPair:
    """Compile what ``load(target)`` gives for the recipe's target, unless the cache has it: ``fingerprint`` identifies
    it, gradients included.

    ``verify`` as in :class:`daceopt.passes.runner.Runner`. Raises Unsupported, BuildError or VerificationError with the
    reason.
    """
    return compiled(source_of(load, recipe, verify), fingerprint)


def compile_model(
    model: onnx.ModelProto,
    *,
    recipe: str | Recipe = "auto",
    verify: str | None = None,
    fallback: bool = True,
    patient: bool = False,
    bundle: Bundle | None = None,
    device: str = "cpu",
) -> CompiledPair:
    """Compile a checked, shape-inferred ONNX model for inference; ``fallback`` runs operators without a native form in
    ONNX Runtime, with a warning.

    ``patient``: NotKnownYet says what has to be known of the inputs, where that is what is missing. ``bundle``: compile
    it together with others, past the cache. ``device``: the kind of device on which the arrays of a call are; ONNX
    Runtime works on the host's alone.
    """
    fallback = fallback and device == "cpu"

    def load(target: str) -> Imported:
        from daceopt.capture.onnx.importer import import_model
        from daceopt.ir.control.imported import Imported

        fallbacks: dict[str, str] = {}
        graph = import_model(
            model,
            fallback=fallback,
            refused=lambda n, why: fallbacks.setdefault(n.op_type, why),
            patient=patient,
            target=target,
        )
        return Imported(graph, fallbacks=fallbacks, device=device)

    source = source_of(load, recipe_for(device, recipe), verify, model)
    if bundle is not None:
        return bundled(source, bundle)
    return compiled(source, key("onnx", model.SerializeToString(deterministic=True), fallback, patient, device))


def derive(imported: Imported, recipe: Recipe, verify: str | None = None) -> Derived:
    """From a graph of operator nodes to the graphs that are built. Raises MemoryBudgetError where the recipe has a
    budget that cannot be held.

    Of a network with many equal layers the recipe runs on a few; where what it makes of one layer is not what it makes
    of the next, it runs on all. So it does where each step is to be verified, a budget is held, or a step may tell
    layers apart.
    """
    from daceopt.layers.equal_layers import EqualLayers

    layers = EqualLayers(imported)
    if verify is None and recipe.budget is None and not any(map(_tells_layers_apart, _steps(recipe))):
        layers = layers.shorten()
    try:
        return _derived(layers, recipe, verify)
    except UnequalLayers as reason:
        logger.info("the recipe runs on all layers: %s", reason)
        return _derived(EqualLayers(imported), recipe, verify)


def _steps(recipe: Recipe) -> Iterator[Transformation]:
    """All that it may run."""
    for one in recipe.recipes() if isinstance(recipe, Choice) else (recipe,):
        yield from one.resolve()


def _tells_layers_apart(step: Transformation) -> bool:
    """Does a step work at places that have names, or is it not daceopt's own, which may count what it finds?"""
    return step.names_places or not identity.is_own(step.inner.defined_by.__module__)


def _derived(layers: EqualLayers, recipe: Recipe, verify: str | None) -> Derived:
    """The recipe on what is left of the layers, and its result for all of them."""
    from daceopt import libs
    from daceopt.ir.control.program import Program

    imported = layers.short
    derived = Derived(Program.of(imported.graph, imported.gradients), layers.full)
    if imported.device == "cpu":
        libs.anticipate(imported.graph)
    with derived.timed("recipe"):
        if isinstance(recipe, Choice):
            run = choice.run(recipe, derived.program, verify, layers.lengthen)
            derived.program, derived.history, derived.choice = run[0], run[1], str(run[2])
        elif recipe.budget is not None and imported.gradients is not None:
            from daceopt.passes import budgeting

            derived.program, derived.history, derived.choice = budgeting.run(recipe, derived.program, verify)
        else:
            derived.history = Runner(recipe, verify).run(derived.program)
            derived.program = layers.lengthen(derived.program)
    derived.history = layers.scale(derived.history, derived.program)
    spent = sum(step.seconds for step in derived.history if step.level == DIFFERENTIATE)
    derived.seconds = {"recipe": derived.seconds["recipe"] - spent, DIFFERENTIATE: spent}
    return derived


def bundled(source: Source, bundle: Bundle) -> CompiledPair:
    """Compile as part of ``bundle``, past the cache: many small programs in one library."""
    from daceopt import libs

    derived = source.graphs = source.derive()
    forward, *backward = [bundle.add(graph, roles, libs.implement) for graph, roles in derived.directions()]
    return CompiledPair.of(source, forward, backward[0] if backward else None)


def source_of(
    load: Load,
    recipe: str | Recipe,
    verify: str | None = None,
    model: onnx.ModelProto | None = None,
) -> Source:
    """What is compiled: what ``load`` gives, the way it goes, and the ONNX model that it comes from."""
    chosen = recipes.get(recipe) if isinstance(recipe, str) else recipe
    return Source(load, chosen, derive, verify, model)
