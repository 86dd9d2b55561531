"""What front ends call: import, the recipe, which differentiates (``programs.derivation``), and the build, with the
cache around them (``programs.compiled``).

None of it runs on a warm start: the fingerprint of what was captured finds the built programs in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daceopt.passes.choice import recipe_for
from daceopt.passes.recipe import Recipe, recipes
from daceopt.programs.compiled import CompiledPair, find_or_build
from daceopt.programs.derivation import Load, Source
from daceopt.store.cache import key

if TYPE_CHECKING:
    import onnx

    from daceopt.codegen.bundle import Bundle
    from daceopt.ir.control.imported import Imported


def compile_graph(
    fingerprint: str, load: Load, *, recipe: str | Recipe = "auto", verify: str | None = None
) -> CompiledPair:
    """Compile what ``load(target)`` gives for the recipe's target, unless the cache has it: ``fingerprint`` identifies
    it, gradients included.

    ``verify`` as in :class:`daceopt.passes.runner.Runner`. Raises Unsupported, BuildError or VerificationError with the
    reason.
    """
    return find_or_build(source_of(load, recipe, verify), fingerprint)


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
        return compile_in_bundle(source, bundle)
    return find_or_build(source, key("onnx", model.SerializeToString(deterministic=True), fallback, patient, device))


def compile_in_bundle(source: Source, bundle: Bundle) -> CompiledPair:
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
    return Source(load, chosen, verify, model)
