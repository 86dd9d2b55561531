"""Iteration spaces as address functions: how an access walks its buffer, and how two spaces are made one.

An access is ``constant + sum(coefficient * parameter)`` over the elements of its root buffer. Two kernels that walk one
buffer with the same address function have the same iteration space up to renaming, permuting and splitting parameters
(Rausch et al., DaCeML, section 5.2: equal and permuted spaces, offsets, common subsets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import sympy

from daceopt.ir.access.dataflow import Address
from daceopt.ir.kernel.kernel import Kernel
from daceopt.ir.scalar.affine import quotient
from daceopt.ir.scalar.dims import Dim, dim
from daceopt.ir.scalar.symbols import Parameter, param


def fresh_params(*kernels: Kernel) -> Iterator[sympy.Symbol]:
    """Parameters that none of ``kernels`` has; for kernels that are alike, the same ones."""
    params_in_use = {p for kernel in kernels for p in kernel.extents}
    return (p for k in count() if (p := Parameter(f"i_f{k}")) not in params_in_use)


def apart(kernel: Kernel, *others: Kernel) -> Kernel:
    """``kernel`` with parameters that none of ``others`` has."""
    return rename(kernel, dict(zip(kernel.extents, fresh_params(kernel, *others))))


def split(
    kernel: Kernel, parameter: sympy.Symbol, inner: Dim, *others: Kernel
) -> tuple[Kernel, sympy.Symbol, sympy.Symbol]:
    """Replace ``parameter`` by ``p_outer * inner + p_inner``, which neither ``kernel`` nor ``others`` have.

    Raises ValueError unless the extent is a multiple of ``inner``.
    """
    count = quotient(kernel.extents[parameter], inner)
    if count is None:
        raise ValueError(f"a loop over {kernel.extents[parameter]} is no loop over blocks of {inner}")
    fresh = fresh_params(kernel, *others)
    pair, both = (count, inner), (next(fresh), next(fresh))
    mapping = {parameter: both[0] * inner + both[1]}

    def expand(params: tuple[sympy.Symbol, ...]) -> tuple[sympy.Symbol, ...]:
        return _widen(params, {k for k, p in enumerate(params) if p == parameter}, both)

    dims = {n: _written_dims(kernel, n, parameter) for n in kernel.locals}
    local = {n: (t, _widen(shape, dims[n], pair)) for n, (t, shape) in kernel.locals.items()}
    position = list(kernel.extents).index(parameter)
    extents = dict(zip(expand(tuple(kernel.extents)), _widen(tuple(kernel.extents.values()), {position}, pair)))

    stages = []
    for stage in kernel.stages:
        if parameter in stage.params:
            wide = stage.with_accesses(lambda a: replace(a, index=_widen(a.index, dims.get(a.array, set()), both)))
            stage = wide.subs(mapping, expand(stage.params))
        stages.append(stage)
    return Kernel(kernel.label, extents, stages, expand(kernel.outer), local), *both


def _written_dims(kernel: Kernel, name: str, parameter: sympy.Symbol) -> set[int]:
    """Dimensions of the local array ``name`` that ``parameter`` indexes."""
    index = next(a.index for s in kernel.stages for a in s.writes.values() if a.array == name)
    return {k for k, e in enumerate(index) if e == parameter}


def _widen(entries: tuple[Dim, ...], where: set[int], pair: tuple[Dim, Dim]) -> tuple[Dim, ...]:
    return tuple(x for k, e in enumerate(entries) for x in (pair if k in where else (e,)))


def unify(
    first: Kernel, address_1: Address, second: Kernel, address_2: Address
) -> tuple[Kernel, Kernel, dict[sympy.Symbol, sympy.Symbol]] | None:
    """Refine both kernels until ``address_2``'s parameters match ``address_1``'s one to one.

    Returns the refined kernels and the mapping from the second's parameters to the first's; None when the address
    functions walk the buffer differently.
    """
    if address_1.buffer != address_2.buffer or dim(address_1.constant - address_2.constant) != 0:
        return None
    unmatched = {p: c for p, c in address_1.terms if first.extents[p] != 1}
    right = {p: c for p, c in address_2.terms if second.extents[p] != 1}
    mapping: dict[sympy.Symbol, sympy.Symbol] = {}
    while unmatched and right:
        pair = next(((p, q) for p, c in unmatched.items() for q, d in right.items() if dim(c - d) == 0), None)
        if pair is None:
            return None
        p, q = pair
        step = unmatched[p]
        a, b = first.extents[p], second.extents[q]
        if dim(a - b) != 0:
            if (outer := quotient(b, a)) is not None and outer != 1:
                second, far, q_inner = split(second, q, a, first)
                right = _replace(right, q, far, dim(step * a), q_inner, step)
                q = q_inner
            elif (outer := quotient(a, b)) is not None and outer != 1:
                first, far, p_inner = split(first, p, b, second)
                unmatched = _replace(unmatched, p, far, dim(step * b), p_inner, step)
                p = p_inner
            else:
                return None
        mapping[q] = p
        del unmatched[p], right[q]
    return None if unmatched or right else (first, second, mapping)


def _replace(
    terms: dict, old: sympy.Symbol, far: sympy.Symbol, far_step: Dim, near: sympy.Symbol, near_step: Dim
) -> dict:
    result = {k: v for k, v in terms.items() if k != old}
    return {**result, far: far_step, near: near_step}


def rename(kernel: Kernel, mapping: dict[sympy.Symbol, sympy.Symbol]) -> Kernel:
    """Rename parameters (simultaneously)."""
    extents = {mapping.get(p, p): e for p, e in kernel.extents.items()}
    stages = [s.subs(mapping) for s in kernel.stages]
    return Kernel(kernel.label, extents, stages, tuple(mapping.get(p, p) for p in kernel.outer), kernel.locals)


def canonical(kernel: Kernel) -> Kernel:
    """Parameters become i0, i1, ...: the outer ones first, then in order of appearance."""
    used = dict.fromkeys([*kernel.outer, *(p for s in kernel.stages for p in s.params)])
    needed = replace(kernel, extents={p: kernel.extents[p] for p in used})
    return rename(needed, {p: param(k) for k, p in enumerate(used)})
