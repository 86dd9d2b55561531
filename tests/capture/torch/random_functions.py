"""Random functions of plain Python: loops, errors that are caught, early ends, lists, variables without a value."""

from __future__ import annotations

import linecache
import random
import types
from typing import Any

_NUMBERS, _LISTS, _LATE = ("a", "b", "c"), ("p", "q"), ("u", "v")


class _Writer:
    """Writes one function as text; ``depth``: how many statements stand around the next, ``loops``: of these, loops."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._depth = self._loops = self._left = 0

    def function(self) -> str:
        """``def f(a, b, see)``, where ``see`` is told of numbers on their way, and may raise ValueError for one."""
        self._left = self._random.randint(6, 22)
        lines = ["c, p, q = a - b, [], [a]", *self._block(self._random.randint(2, 5))]
        kept = self._random.choice(["a, b, c", "a, b, c, p, q", "p, q", "a, b, c, p, q, u", "c, v"])
        return "def f(a, b, see):\n" + "".join(f"    {line}\n" for line in [*lines, f"return {kept}"])

    def _block(self, count: int) -> list[str]:
        self._depth += 1
        lines = [line for _ in range(count) for line in self._statement()]
        self._depth -= 1
        return lines or ["pass"]

    def _inner(self) -> list[str]:
        return [f"    {line}" for line in self._block(self._random.randint(1, 3))]

    def _statement(self) -> list[str]:
        self._left -= 1
        plain = [self._set, self._set, self._add, self._see, self._see, self._end]
        compound = [self._if, self._loop, self._loop, self._try, self._try, self._with]
        return self._random.choice(plain if self._depth > 4 or self._left < 0 else [*plain, *compound])()

    def _value(self) -> str:
        n, m = self._random.choices(_NUMBERS, k=2)
        late, some = self._random.choice(_LATE), self._random.choice(_LISTS)
        number = self._random.randint(-3, 4)
        ordinary = [f"{n} + {number}", f"{m} - {n}", f"see({n}) + 1", f"{n} // {m}", str(number), n]
        rare = [late, f"sum({some})", f"len({some}) - {n}", f"({late} := {n} + {number})", f"{some}[-1]"]
        rare += [f"sum([({late} := {m} + x) for x in {some}])", f"sum([{n} for {n} in {some}]) + {n}", f"max({n}, {m})"]
        return self._random.choice(rare if self._random.random() < 0.3 else ordinary)

    def _test(self) -> str:
        n, number = self._random.choice(_NUMBERS), self._random.randint(-3, 3)
        return self._random.choice([f"{n} > {number}", f"{n} % 2", f"see({n}) < {number}", f"({self._value()}) > 0"])

    def _set(self) -> list[str]:
        name = self._random.choice((*_NUMBERS, *_LATE) if self._random.random() < 0.4 else _NUMBERS)
        operator = self._random.choice(["=", "=", "+="])
        return [f"{name} {operator} {self._value()}"]

    def _add(self) -> list[str]:
        some, n = self._random.choice(_LISTS), self._random.choice(_NUMBERS)
        return [self._random.choice([f"{some}.append({self._value()})"] * 4 + [f"{some} = [{n}]", "p = q"])]

    def _see(self) -> list[str]:
        return [f"see({self._random.choice(_NUMBERS)})"]

    def _end(self) -> list[str]:
        ends = [f"return {self._value()}", "raise ValueError(a)", *["break", "continue"] * 2 * bool(self._loops)]
        return [f"if {self._test()}:", f"    {self._random.choice(ends)}"]

    def _if(self) -> list[str]:
        lines = [f"if {self._test()}:", *self._inner()]
        return lines if self._random.random() < 0.5 else [*lines, "else:", *self._inner()]

    def _loop(self) -> list[str]:
        self._loops += 1
        n, some = self._random.choice((*_NUMBERS, *_LATE)), self._random.choice(_LISTS)
        heads = [f"for {n} in range({self._random.randint(1, 4)}):", f"for {n} in list({some}):", "while see(0) % 5:"]
        lines = [self._random.choice(heads), *self._inner()]
        self._loops -= 1
        return lines if self._random.random() < 0.7 else [*lines, "else:", *self._inner()]

    def _try(self) -> list[str]:
        lines = ["try:", *self._inner()]
        if self._random.random() < 0.85:
            named = self._random.choice(
                ["ValueError", "(ValueError, ArithmeticError, LookupError)", "Exception as error"]
            )
            lines += [f"except {named}:", *self._inner()]
            lines += ["else:", *self._inner()] if self._random.random() < 0.3 else []
        if not lines[-1].strip() or self._random.random() < 0.3 or len([x for x in lines if x[0] != " "]) == 1:
            lines += ["finally:", *self._inner()]
        return lines

    def _with(self) -> list[str]:
        kinds = ["suppress(ValueError)", "nullcontext()", "nullcontext(a) as u"]
        return [f"with {self._random.choice(kinds)}:", *self._inner()]


def random_function(seed: int) -> tuple[types.FunctionType, str]:
    """A function and its text."""
    from contextlib import nullcontext, suppress

    text, name = _Writer(seed).function(), f"<random function {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"nullcontext": nullcontext, "suppress": suppress}
    exec(compile(text, name, "exec"), scope)
    return scope["f"], text
