"""What the statements of a kernel access, as isl's relations, and what must stay in order because of that."""

from __future__ import annotations

from functools import reduce
from typing import Any

import islpy as isl

from daceopt.errors import Unsupported
from daceopt.ir.affine_isl import identifier
from daceopt.ir.graph import Graph
from daceopt.ir.instances_isl import Domains
from daceopt.ir.kernel import Access, Kernel

_OUT = isl.dim_type.out


def dependences(graph: Graph | None, kernel: Kernel) -> isl.UnionMap:
    """{ instance that writes an element of a local -> instance of a later statement that reads it }.

    Each iteration of the kernel's outer parameters has locals of its own. What a reduction collects is read only when
    all instances have added to it, so each of them is the source of a dependence.
    """
    accesses = Accesses(Domains(graph, kernel))
    return union([m for array in kernel.locals for m in accesses.flow(array)])


class Accesses:
    """Relations between the instances of a kernel's statements, and what they access."""

    def __init__(self, domains: Domains):
        self.domains, self.kernel = domains, domains.kernel

    def elements(self, array: str, write: bool) -> dict[int, isl.Map]:
        """Statement -> { instance -> element of ``array`` that it writes, or reads }."""
        found: dict[int, isl.Map] = {}
        for k, stage in enumerate(self.kernel.stages):
            for access in (stage.writes if write else stage.reads).values():
                if access.array == array:
                    element = self.element(k, access)
                    found[k] = found[k].union(element) if k in found else element
        return found

    def element(self, k: int, access: Access) -> isl.Map:
        """{ instance of statement ``k`` -> element }; any element where the index has no form in isl, which is safe."""
        domain, of, _ = self.domains.functions(k)
        found = isl.Map.from_domain(domain)
        for value in access.index:
            found = found.flat_range_product(_component(of, domain, value))
        return found.set_tuple_id(_OUT, identifier(access.array))

    def same_iteration(self, a: int, b: int) -> isl.Map:
        """{ instance of a -> instance of b } with the same values of the kernel's outer parameters."""
        return self._outer(a).apply_range(self._outer(b).reverse())

    def _outer(self, k: int) -> isl.Map:
        domain, _, values = self.domains.functions(k)
        found = isl.Map.from_domain(domain)
        for p in (p for p in self.kernel.outer if p in values):  # a scope without loops names one all the same
            found = found.flat_range_product(isl.Map.from_pw_aff(values[p]).intersect_domain(domain))
        return found

    def flow(self, array: str) -> list[isl.Map]:
        """The dependences through one local."""
        writes, reads = self.elements(array, True), self.elements(array, False)
        pairs = [(w, r) for w in writes for r in reads if w < r]
        return [meeting(writes[w], reads[r]).intersect(self.same_iteration(w, r)) for w, r in pairs]

    def overwritten(self, array: str) -> list[isl.Map]:
        """{ instance that accesses an element of a local -> instance of a later statement that writes it }."""
        writes, reads = self.elements(array, True), self.elements(array, False)
        pairs = [(a, m, b) for found in (reads, writes) for a, m in found.items() for b in writes if a < b]
        return [meeting(m, writes[b]).intersect(self.same_iteration(a, b)) for a, m, b in pairs]

    def clashes(self, array: str, write: bool) -> isl.UnionMap:
        """{ instance that writes -> instance that accesses the same memory } in two iterations of the outer loops."""
        writes, others = self.elements(array, True), self.elements(array, write)
        pairs = [(a, b) for a in writes for b in others]
        return union([meeting(writes[a], others[b]).subtract(self.same_iteration(a, b)) for a, b in pairs])

    def together(self, k: int, connector: str) -> isl.UnionMap:
        """{ instance -> another instance } that a reduction adds to the same element."""
        access = self.kernel.stages[k].writes[connector]
        element = self.element(k, access)
        pairs = meeting(element, element)
        if access.array in self.kernel.locals:
            pairs = pairs.intersect(self.same_iteration(k, k))
        return isl.UnionMap.from_map(pairs.subtract(isl.Map.identity(pairs.get_space())))


def _component(of: Any, domain: isl.Set, value: Any) -> isl.Map:
    anything = isl.Map.from_domain_and_range(domain, isl.Set("{ [x] }"))
    try:
        return anything if value is None else isl.Map.from_pw_aff(of.of(value)).intersect_domain(domain)
    except Unsupported:
        return anything


def meeting(first: isl.Map, second: isl.Map) -> isl.Map:
    """{ a -> b } with the same image."""
    return first.apply_range(second.reverse())


def union(maps: list[isl.Map]) -> isl.UnionMap:
    """All of them."""
    return reduce(isl.UnionMap.union, map(isl.UnionMap.from_map, maps), isl.UnionMap("{ }"))
