"""One site among many, said so that it is found again: in a copy of the graph, after other edits, in another model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError, did_you_mean
from daceopt.ir.data.provenance import join_origins
from daceopt.passes.transform import Site

if TYPE_CHECKING:
    from daceopt.passes.transform import Transformation

_LISTED = 8


@dataclass(frozen=True)
class Selector:
    """The ``number``-th (from 0) of the sites that are called ``site`` and come from ``origin``, in the order in which
    they are found.

    ``origin``: paths of modules, or names of nodes of an ONNX file; empty for any. Both may have the wildcards of file
    names, where no site is called so literally. ``site``: empty for any.
    """

    site: str = ""
    origin: str = ""
    number: int = 0

    @classmethod
    def of(cls, sites: Sequence[Site], chosen: Site) -> Selector:
        """What picks ``chosen`` among ``sites``."""
        text, origin = title_of(chosen), origin_of(chosen)
        equal = [s for s in sites if title_of(s) == text and origin_of(s) == origin]
        return cls(text, origin, equal.index(chosen))

    def pick(self, sites: Sequence[Site], transformation: Transformation) -> Site:
        """The site. Raises DaceoptError, with what there is, where there is none."""
        named = _fitting(sites, self.site, [title_of(s) for s in sites])
        if not named:
            raise DaceoptError(self._missing(sites, transformation))
        fitting = _fitting(named, self.origin, [origin_of(s) for s in named])
        if not fitting:
            there = _list_text(origin_of(s) or "(nowhere in particular)" for s in named)
            hint = "leave origin out for any, or give it wildcards"
            raise DaceoptError(f"{self._text(transformation)}: sites called so come from {there}; {hint}")
        if not 0 <= self.number < len(fitting):
            raise DaceoptError(f"{self._text(transformation)}: there are {len(fitting)}, numbered from 0")
        return fitting[self.number]

    def _text(self, transformation: Transformation) -> str:
        origin = f" from {self.origin!r}" if self.origin else ""
        name = f" {self.site!r}" if self.site else ""
        return f"{transformation} has no site{name}{origin} with number {self.number}"

    def _missing(self, sites: Sequence[Site], transformation: Transformation) -> str:
        names = list(dict.fromkeys(map(title_of, sites)))
        there = f"its sites are {_list_text(names)}" if names else "it has no site at all"
        return f"{self._text(transformation)}: {there}{did_you_mean(self.site, names)}"


def title_of(site: Site) -> str:
    """How a site is told from others: ``add + mul x 2`` for ``add + mul + mul``, as kernels of one operator are often
    many."""
    runs = ((name, len(list(run))) for name, run in itertools.groupby(str(site).split(" + ")))
    return " + ".join(name if count == 1 else f"{name} x {count}" for name, count in runs)


def origin_of(site: Site) -> str:
    """Where in the model the nodes of a site come from; the same for equal models, whatever their arrays are called."""
    graph = site.graph
    return ", ".join(join_origins(graph.origins_of(node) for node in site.nodes if node in graph))


def _fitting(sites: Sequence[Site], name: str, texts: Sequence[str]) -> list[Site]:
    """Those called so; with wildcards where none is literally; all of them where nothing is wanted."""
    if not name:
        return list(sites)
    literal = [s for s, text in zip(sites, texts, strict=True) if text == name]
    return literal or [s for s, text in zip(sites, texts, strict=True) if fnmatchcase(text, name)]


def _list_text(names: Iterable[str]) -> str:
    texts = [repr(n) for n in dict.fromkeys(names)]
    more = [f"{len(texts) - _LISTED} more"] if len(texts) > _LISTED else []
    return ", ".join([*texts[:_LISTED], *more])
