"""Guided optimizations of Rausch et al. (DaCeML, ICS 2022) as walks of a session: what is measured after each of its
steps is a program of its own, in loops that all of them get alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from daceopt.explore.session.session import Session
from daceopt.passes.transform import Transformation
from daceopt.recipes.cpu import ALGEBRA, CLEANUP, FUSION, LIFTING, LOOPS, MEMORY

AUTOMATIC = "recipe cpu"
_LOWER = "lower-operators{keep_rules=True}"
_STORED = "differentiate{policy='store'}"
_LAYOUTS = ("layout-search", "weight-packing")


@dataclass(frozen=True)
class Stage:
    """What a program is after a step of the walk: the recipe that makes it, and what it moves and launches."""

    title: str
    steps: tuple[Transformation, ...]
    bytes: int
    kernels: int

    @classmethod
    def of(cls, title: str, at: Session) -> Stage:
        return cls(title, at.path, at.at.bytes, at.at.nodes)


Walk = Callable[[Session], Iterator[Stage]]


def branch(at: Session, name: str, *steps: str) -> Session:
    """A branch of the session, some steps further."""
    session = at.branch(name)
    for step in steps:
        session.apply(step)
    return session


def _finish(at: Session, title: str, *steps: str) -> Stage:
    return Stage.of(title, branch(at, title, *steps, *MEMORY, *LOOPS))


def _automatic(start: Session) -> Stage:
    return Stage.of(AUTOMATIC, branch(start, AUTOMATIC, "cpu"))


def kernel_walk(start: Session) -> Iterator[Stage]:
    """Of one operator (appendices B.1 and B.2): fusion, computing again what is fused before the derivative, loops."""
    automatic = _automatic(start)
    start.apply(_LOWER)
    yield Stage.of("one by one", branch(start, "one by one", _STORED, "lower-operators"))
    fusion = "lower-operators", "map-fusion", "reduction-lowering"
    yield Stage.of("+ subgraph fusion", branch(start, "fused", _STORED, *fusion))
    recomputed = branch(start, "recomputed", "tasklet-fusion", "differentiate", *fusion)
    yield Stage.of("+ tasklet fusion before the derivative", recomputed)
    yield _finish(recomputed, "+ vectorization")
    yield automatic


def mbconv_walk(start: Session) -> Iterator[Stage]:
    """Of the MBConv block (section 6.3, figure 7)."""
    derivative = _LOWER, "tasklet-fusion", "differentiate"
    fusion = [step for step in FUSION if step not in _LAYOUTS]
    yield _finish(start, "one by one", _LOWER, "differentiate", "lower-operators")
    cleaned = branch(start, "cleaned", *CLEANUP, *LIFTING, *ALGEBRA)
    yield _finish(cleaned, "+ constant folding, pad-conv fusion, Swish", *derivative, "lower-operators")
    yield _finish(branch(cleaned, "automatic", *derivative, *FUSION), AUTOMATIC)
    fused = branch(cleaned, "channels first", *derivative, *fusion)
    yield _finish(fused, "guided: channels first")
    lowered, *others = fusion
    fused = branch(cleaned, "fused convolution", *derivative, lowered, "convolution-opening", *others)
    yield _finish(fused, "guided: + fused convolution")
    yield _finish(fused, "guided: + map fission and fusion anew", "map-fission", "fusion-exploration")
    recomputed = _LOWER, "tasklet-fusion", "differentiate{recompute=['@elementwise']}"
    yield _finish(
        cleaned, "guided: fused convolution, computed again", *recomputed, lowered, "convolution-opening", *others
    )


def bert_walk(start: Session) -> Iterator[Stage]:
    """Of a layer of BERT (section 6.4, figure 9): single sites of ``map-fusion``, as a user picks them."""
    automatic = _automatic(start)
    derivative = _LOWER, "differentiate", "lower-operators"
    at = branch(start, "guided", *CLEANUP, *LIFTING, *ALGEBRA, *derivative)
    yield _finish(at, "algebraic fusion and libraries")
    yield _finish(branch(at, "guided", "product-transposition", "relayout-fusion"), "+ relayout fusion")
    yield _finish(fuse(at, "softmax"), "+ softmax fusion")
    yield _finish(fuse(at, "layernormalization"), "+ layer normalization fusion")
    yield automatic


def fuse(at: Session, operator: str) -> Session:
    """The session, after ``map-fusion`` at all sites with parts of an operator, forward and backward."""
    for site in at.sites("map-fusion"):
        if operator in str(site):
            at.apply(site)
    return at
