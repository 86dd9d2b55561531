"""What the statements of a kernel access, as isl's relations, and what must stay in order because of that."""

from __future__ import annotations

from functools import reduce

import islpy as isl

from daceopt.errors import Unsupported
from daceopt.ir.graph.graph import Graph
from daceopt.ir.kernel.kernel import Access, Kernel
from daceopt.ir.polyhedral.instances_isl import Domains
from daceopt.ir.scalar.affine_isl import Functions, identifier
from daceopt.ir.scalar.dims import Dim

_OUT = isl.dim_type.out


def dependences(graph: Graph | None, kernel: Kernel) -> isl.UnionMap:
    """{ instance that writes an element of a local, or of an array that later statements read -> one that reads it }.

    Each iteration of the kernel's outer parameters has locals of its own; so has each iteration of its serial loops,
    except of locals that are kept from one to the next: then an instance depends on all that write before it in the
    kernel's own order. What a reduction collects is read only when all instances have added to it, so each of them is
    the source of a dependence.
    """
    accesses = Accesses(Domains(graph, kernel))
    return union([m for array in (*kernel.locals, *sorted(kernel.forwarded_arrays())) for m in accesses.flow(array)])


class Accesses:
    """Relations between the instances of a kernel's statements, and what they access."""

    def __init__(self, domains: Domains):
        self.domains, self.kernel = domains, domains.kernel
        self._kept = self.kernel.kept_locals()

    def elements(self, array: str, write: bool) -> dict[int, isl.Map]:
        """Statement -> { instance -> element of ``array`` that it writes, or reads }."""
        maps: dict[int, isl.Map] = {}
        for k, stage in enumerate(self.kernel.stages):
            for access in (stage.writes if write else stage.reads).values():
                if access.array == array:
                    element = self.element(k, access)
                    maps[k] = maps[k].union(element) if k in maps else element
        return maps

    def element(self, k: int, access: Access) -> isl.Map:
        """{ instance of statement ``k`` -> element }; any element where the index has no form in isl, which is safe."""
        domain, of, _ = self.domains.functions(k)
        relation = isl.Map.from_domain(domain)
        for value in access.index:
            relation = relation.flat_range_product(_component(of, domain, value))
        return relation.set_tuple_id(_OUT, identifier(access.array))

    def same_iteration(self, array: str, a: int, b: int) -> isl.Map:
        """{ instance of a -> instance of b } that access the same copy of ``array``: of a local, there is one for each
        outer iteration."""
        return self._own(array, a).apply_range(self._own(array, b).reverse())

    def _own(self, array: str, k: int) -> isl.Map:
        domain, _, values = self.domains.functions(k)
        relation = isl.Map.from_domain(domain)
        own = self.kernel.iteration(array) if array in self.kernel.locals else ()
        for p in (p for p in own if p in values):  # a scope without loops names one all the same
            relation = relation.flat_range_product(isl.Map.from_pw_aff(values[p]).intersect_domain(domain))
        return relation

    def flow(self, array: str) -> list[isl.Map]:
        """The dependences through one local."""
        writes, reads = self.elements(array, True), self.elements(array, False)
        return self._dependent(array, writes, reads)

    def overwritten(self, array: str) -> list[isl.Map]:
        """{ instance that accesses an element of a local -> instance of a later statement that writes it }."""
        writes, reads = self.elements(array, True), self.elements(array, False)
        return self._dependent(array, reads, writes) + self._dependent(array, writes, writes)

    def _dependent(self, array: str, sources: dict[int, isl.Map], targets: dict[int, isl.Map]) -> list[isl.Map]:
        """{ source -> target } on one element, in the order of the statements, or in the kernel's own where values are
        kept."""
        is_kept = array in self._kept
        pairs = [(a, b) for a in sources for b in targets if is_kept or a < b]
        maps = [meeting(sources[a], targets[b]).intersect(self.same_iteration(array, a, b)) for a, b in pairs]
        return [m.intersect(self._before(a, b)) for m, (a, b) in zip(maps, pairs)] if is_kept else maps

    def _before(self, a: int, b: int) -> isl.Map:
        """{ instance of a -> instance of b } that runs later as the kernel says: by the serial loops that both stand
        in, then by the order of the statements."""
        (first, _, one), (second, _, other) = self.domains.functions(a), self.domains.functions(b)
        space = isl.Map.from_domain_and_range(first, second)
        earlier, same = isl.Map.empty(space.get_space()), space
        for p in (p for p in self.kernel.serial if p in one and p in other):
            times, later = isl.Map.from_pw_aff(one[p]), isl.Map.from_pw_aff(other[p])
            earlier = earlier.union(same.intersect(times.lex_lt_map(later)))
            same = same.intersect(times.apply_range(later.reverse()))
        return earlier.union(same) if a < b else earlier

    def clashes(self, array: str, write: bool) -> isl.UnionMap:
        """{ instance that writes -> instance that accesses the same memory } in two iterations of the outer loops."""
        writes, others = self.elements(array, True), self.elements(array, write)
        pairs = [(a, b) for a in writes for b in others]
        return union([meeting(writes[a], others[b]).subtract(self.same_iteration(array, a, b)) for a, b in pairs])

    def together(self, k: int, connector: str) -> isl.UnionMap:
        """{ instance -> another instance } that a reduction adds to the same element."""
        access = self.kernel.stages[k].writes[connector]
        element = self.element(k, access)
        pairs = meeting(element, element)
        if access.array in self.kernel.locals:
            pairs = pairs.intersect(self.same_iteration(access.array, k, k))
        return isl.UnionMap.from_map(pairs.subtract(isl.Map.identity(pairs.get_space())))


def _component(of: Functions, domain: isl.Set, value: Dim | None) -> isl.Map:
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
