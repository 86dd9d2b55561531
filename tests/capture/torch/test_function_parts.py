"""A function in parts does what the function does, in plain Python."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from daceopt.capture.torch.function_parts import in_parts, is_in_parts
from tests.capture.torch.random_functions import random_function

OFFSET = 3


def _sums(xs):
    total = 0
    for k, x in enumerate(xs):
        total += x * k
    return total


def _leaves_early(xs):
    seen = []
    for x in xs:
        if x < 0:
            return seen, "below"
        if x == 0:
            continue
        if x > 5:
            break
        seen.append(x)
    else:
        seen.append("all")
    return seen


def _skips_before_it_sets(xs):
    for x in xs:
        if x % 2:
            continue
        even = x
    return even


def _sets_by_choice(xs):
    for x in xs:
        if x > 2:
            last = x
        else:
            first = x
    return [first, last]


def _nested(xs):
    found = []
    for x in xs:
        for y in xs:
            if y > x:
                break
            if y == 4:
                return found
            found.append((x, y))
        else:
            continue
        found.append("cut")
    return found


def _collects(xs):
    """Lists that parts do not see: what is added to them comes out."""
    kept, seen = [], []
    for x in xs:
        kept.append(x * 2)
        if x > 4:
            break
        seen.append(x)
        if x == 2:
            continue
        kept.append(len(seen))
    return kept, seen


def _collects_once(xs):
    kept, rest = [], []
    for x in xs:
        kept.append(x * 2)
        rest.append(x) if x else None
        if x > 4:
            break
    return kept, rest


def _while(xs):
    n, left = 0, list(xs)
    while left and n < 10:
        n += left.pop()
        if n == 7:
            break
    else:
        n = -n
    return n, left


def _guarded(xs):
    found = []
    for x in xs:
        try:
            found.append(10 // x)
        except ZeroDivisionError as error:
            found.append(type(error).__name__)
            continue
        finally:
            found.append("after")
    return found


def _opens(xs):
    with suppress(ZeroDivisionError), nullcontext(2) as factor:
        total = 0
        for x in xs:
            total += factor // x
        return total
    return "left"


def _chooses(xs):
    if len(xs) > 2:
        scale = 2
        for x in xs:
            scale *= x + OFFSET
    else:
        scale = 1
    return scale


def _comprehends(xs):
    rows = [[x] for x in xs]
    for k in range(3):
        rows = [row + [k * j for j in row] for row in rows]
        if all(len(row) > 2 for row in rows):
            break
    return rows, sum(x for row in rows for x in row)


def _sets_in_expressions(xs):
    found, n = [], 0
    while (n := n + 1) < 4:
        found.append(y := n * 2)
    return found, n, y


def _goes_on_behind_an_error(xs):
    y, seen = 1, []
    for x in xs:
        try:
            y = y + 1
            seen.append(y)
            y = y * 2 + 6 // x
        except ZeroDivisionError:
            y = -y
    return y, seen


def _ends_a_loop_by_an_error(xs):
    y, seen = 0, []
    try:
        for x in xs:
            y = y + x
            seen.append(x)
            y = y + 6 // x
            if y > 20:
                break
            if y == 3:
                continue
            y = y + 1
    except ZeroDivisionError:
        return y, seen
    return seen, y


def _goes_on_through_finally(xs):
    y, z = 1, 1
    for x in xs:
        try:
            y = y + x
            if x > 2:
                return y, z
            y = y * 2
        finally:
            z = z + y
    return y, z


def _passes_over_an_error(xs):
    y = 0
    with suppress(ZeroDivisionError):
        for x in xs:
            y = y + 1
            y = y + 6 // x
    return y


def _knows_a_list_twice(xs):
    seen = last = []
    for x in xs:
        seen.append(x)
        x = x + len(last)
        if x > 4:
            break
    return seen


def _only_adds(xs):
    """Nothing is left of the body but what is added."""
    seen = []
    for x in xs:
        for _ in range(2):
            seen.append(x)
        seen.append(x * 2)
    return seen


def _names_again(xs):
    """Variables of comprehensions and lambdas beside the function's own."""
    y = last = 0
    for x in xs:
        rows = [(last := x + k) for k in range(3)]
        xs = [xs + rows[0] for xs in xs]
        y = y + last + sum(map(lambda x, rows=rows: x + len(rows), rows))
    return y, xs, last


def _imports(xs):
    for x in xs:
        import math as m

        x = m.floor(x) + x
    return x


class _Counter:
    def __init__(self) -> None:
        self.__count = 0

    def run(self, xs, *more, step=1, **named):
        """Private names and all kinds of parameters."""
        for x in itertools.chain(xs, more, named.values()):
            self.__count += x * step
        return self.__count


def _around(factor):
    def inner(xs):
        found = []
        for x in xs:
            found.append(x * factor)
        return found

    return inner


FUNCTIONS = [
    *(
        _sums,
        _leaves_early,
        _skips_before_it_sets,
        _sets_by_choice,
        _nested,
        _while,
        _collects,
        _collects_once,
        _guarded,
        _opens,
        _chooses,
    ),
    *(_comprehends, _imports, _sets_in_expressions, _around(5)),
    *(_goes_on_behind_an_error, _ends_a_loop_by_an_error, _goes_on_through_finally, _passes_over_an_error),
    *(_knows_a_list_twice, _only_adds),
]


def _split(function: types.FunctionType) -> Callable[..., Any]:
    code = in_parts(function.__code__)
    assert code is not None and is_in_parts(code) and not is_in_parts(function.__code__)
    made = types.FunctionType(code, function.__globals__, "made", function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _outcome(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.share(4)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__qualname__)
@pytest.mark.parametrize("xs", [[], [1], [0, 1], [2, 4, 0, 6, 1], [3, 4], [5, 3, -1, 2], [1, 3, 5, 7]], ids=str)
def test_in_parts(function, xs):
    assert _outcome(_split(function), list(xs)) == _outcome(function, list(xs))


def test_a_method():
    ours, theirs = _Counter(), _Counter()
    split = _split(_Counter.run)
    for _ in range(2):
        assert split(ours, [1, 2], 3, step=2, a=4) == theirs.run([1, 2], 3, step=2, a=4)


@pytest.mark.parametrize("function", [_nested, _guarded], ids=lambda f: f.__name__)
def test_parts_of_parts(function):
    """The body of a loop, which has a loop itself, in its turn."""
    made = in_parts(function.__code__)
    bodies = [c for c in made.co_consts if isinstance(c, types.CodeType)]
    split = {body: in_parts(body) for body in bodies}
    assert any(split.values())
    whole = made.replace(co_consts=tuple(split.get(c) or c if c in bodies else c for c in made.co_consts))
    for xs in ([2, 0, 4, 1], [3, 1, 2], []):
        assert _outcome(types.FunctionType(whole, globals()), xs) == function(xs)


def _whole(code: types.CodeType) -> types.CodeType:
    """The function and all its parts in parts."""
    made = in_parts(code)
    if made is None:
        return code
    constants = [_whole(c) if isinstance(c, types.CodeType) else c for c in made.co_consts]
    return made.replace(co_consts=tuple(constants))


def _seen(function, bad: int) -> tuple[Any, list[int]]:
    """The outcome, and the numbers that the function has told on its way."""
    told: list[int] = []

    def see(number):
        told.append(number)
        if len(told) > 50:
            raise KeyboardInterrupt
        if number == bad or len(told) == bad + 10:
            raise ValueError(number)
        return number or len(told)

    try:
        return _outcome(function, 3, 1, see), told
    except KeyboardInterrupt:
        return "runs for long", told


@pytest.mark.parametrize("seed", range(0, 300, 100))
def test_random_functions(seed):
    """Whatever raises, leaves, goes on, or has no value: parts do the same in the same order."""
    split = 0
    for k in range(seed, seed + 100):
        function, text = random_function(k)
        code = _whole(function.__code__)
        split += code is not function.__code__
        for bad in (99, 2, 0, -5):
            ours, theirs = (_seen(types.FunctionType(c, function.__globals__), bad) for c in (code, function.__code__))
            assert ours == theirs, f"{ours}, expected {theirs}:\n{text}"
    assert split > 50


def _straight(x):
    return x + 1


def _generator(xs):
    for x in xs:
        yield x + 1


def _keeps_functions(xs):
    found = []
    for x in xs:
        found.append(lambda: x)  # noqa: B023
    return [f() for f in found]


def _looks(xs):
    for _ in xs:
        pass
    return locals()


def _test_of_what_may_be_unset(xs):
    for x in xs:
        n = x
    while n > 0:
        n -= 1


def _goes_on_before_finally_sets(xs):
    y = 0
    for x in xs:
        try:
            if x > 2:
                continue
        finally:
            y = y + x
    return y


LEFT = [
    _goes_on_before_finally_sets,
    _straight,
    _generator,
    _keeps_functions,
    _names_again,
    _looks,
    _test_of_what_may_be_unset,
]


@pytest.mark.parametrize("function", LEFT, ids=lambda f: f.__name__)
def test_what_stays_whole(function):
    assert in_parts(function.__code__) is None


def test_text_that_is_not_there():
    scope: dict[str, Any] = {}
    exec("def f(xs):\n    for x in xs:\n        print(x)\n", scope)
    assert in_parts(scope["f"].__code__) is None
