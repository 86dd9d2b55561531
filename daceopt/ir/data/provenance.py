"""Where nodes and arrays of a graph come from in the model, for people: nothing else depends on it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

BACKWARD = "_backward"  # ends the names of kernels of gradients
_AND = "__"  # is between the names of what was fused; DaCe takes letters, digits and underscores only
_HELPERS = ("copy", "cast")  # what a kernel is not named after that does anything else

Origins = tuple[str, ...]  # paths of modules, or names of nodes of an ONNX file, each once


@dataclass(frozen=True)
class Maker:
    """Whose work is being done: nodes that are added are called ``label`` and arrays come from ``origins``, where these
    are not empty."""

    label: str = ""
    origins: Origins = ()

    def then(self, label: str, origins: Origins) -> Maker:
        """What these say, and this one where they are empty."""
        return Maker(label or self.label, origins or self.origins)


def join_origins(several: Iterable[Origins]) -> Origins:
    """All of them, each once, in order."""
    return tuple(dict.fromkeys(origin for origins in several for origin in origins))


def shared_path(origins: Iterable[str]) -> tuple[str, ...]:
    """``("encoder", "0")`` for ``encoder.0.norm`` and ``encoder.0.linear``; nodes of an ONNX file have slashes."""
    paths = [tuple(filter(None, origin.split(_separator(origin)))) for origin in origins]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths))
    return tuple(parts[0] for parts in shared)


def innermost(origins: Origins) -> str:
    """The path of the innermost module that all of them are in, or are; empty where there is none."""
    return "" if not origins else _separator(origins[0]).join(shared_path(origins))


def _separator(origin: str) -> str:
    return "/" if "/" in origin else "."


def label_of(node: object) -> str:
    """The name of a node as kernels have it."""
    return re.sub(r"[^a-z0-9_]+", "_", str(getattr(node, "label", type(node).__name__)).lower())


def backward_label(node: object) -> str:
    """What kernels are called that compute the gradient of ``node``."""
    return label_of(node) + BACKWARD


def stems(label: str) -> list[str]:
    """What a kernel of this name consists of: ``add`` and ``tanh`` for ``add__tanh_backward``."""
    return label.removesuffix(BACKWARD).split(_AND)


def fused_label(first: str, second: str) -> str:
    """The name of one kernel made of two: ``add`` and ``softmax`` are ``add__softmax``; what belongs to a gradient is
    called so as a whole, with what it computes again."""
    labels = list(dict.fromkeys([*stems(first), *stems(second)]))
    named = [s for s in labels if s not in _HELPERS] or labels
    return _AND.join(named) + (BACKWARD if any(x.endswith(BACKWARD) for x in (first, second)) else "")
