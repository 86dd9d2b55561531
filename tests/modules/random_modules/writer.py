"""Writes a random module and a script that calls it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from tests.modules.random_modules import vocabulary as words

_HOLE = re.compile(r"\{(\+?\w+)\}")
_KINDS = ("t", "o", "v", "q", "s", "f", "k")
Scope = dict[str, list[str]]


class Writer:
    """One program, by its seed. ``_scope``: the names that have a value, by kind; ``_loops``: how many stand around."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = self._depth = 0
        self._size = self._random.choice([5, 6])
        self._scope: Scope = {kind: [] for kind in _KINDS}
        self._scope["t"] = ["x", "y"]
        themes = self._random.sample(list(words.THEMES), 3)
        self._weights = [4 if name in themes else 1 for name in words.THEMES]

    def program(self) -> str:
        """The text of a module ``Net`` and of ``STEPS``, functions of what :class:`running.Caller` offers."""
        forward = [line for _ in range(self._random.randint(2, 5)) for line in self._statement()]
        forward.append(f"return {self._filled(self._random.choice(words.RESULTS))}")
        steps = [self._step(k) for k in range(self._random.randint(2, 3))]
        return _assembled(forward, steps)

    # ---------------------------------------------------------------- forward

    def _statement(self) -> list[str]:
        if self._depth < 2 and self._random.random() < 0.15:
            return self._random.choice([self._if, self._for, self._while, self._try, self._with])()
        theme = self._random.choices(list(words.THEMES.values()), self._weights)[0]
        return self._filled(self._random.choice(theme)).split("\n")

    def _block(self) -> list[str]:
        """Statements of a block, whose new names nobody knows behind it."""
        before = {kind: list(names) for kind, names in self._scope.items()}
        self._depth += 1
        lines = [f"    {line}" for _ in range(self._random.randint(1, 3)) for line in self._statement()]
        self._depth -= 1
        self._scope = before
        return [*lines, *self._carried()]

    def _carried(self) -> list[str]:
        """Maybe one variable of before with another value."""
        known = [t for t in self._scope["t"] if t not in self._scope["o"]]
        if not known or self._random.random() < 0.4:
            return []
        return [f"    {self._random.choice(known)} = {self._filled('torch.tanh({t} @ self.w + {u})')}"]

    def _if(self) -> list[str]:
        lines = [f"if {self._filled('{c}')}:", *self._block()]
        return lines if self._random.random() < 0.5 else [*lines, "else:", *self._block()]

    def _for(self) -> list[str]:
        heads = ["for i in range(3):", "for i in range({k} % 4):", "for i in range(int({t}.abs().sum()) % 4):"]
        heads += ["for layer in (self.lin, self.deep):", "for row in {t}[:3]:", "for i, q in enumerate(self.parts):"]
        lines = [self._filled(self._random.choice(heads)), *self._block()]
        if self._random.random() < 0.4:
            lines += [self._filled("    if {c}:"), f"        {self._random.choice(['break', 'continue'])}"]
        return lines

    def _while(self) -> list[str]:
        begin, name = self._filled("count{n}, {+t} = 0, {t}"), self._scope["t"][-1]
        count = begin.split(",")[0]
        body = self._block()
        return [
            begin,
            f"while {name}.abs().max() > 0.3 and {count} < 3:",
            *body,
            f"    {name} = {name} * 0.6",
            f"    {count} += 1",
        ]

    def _try(self) -> list[str]:
        lines = ["try:", *self._block(), self._filled("    if {c}:"), "        raise Stop(k)"]
        lines += ["except Stop as error:", *self._block()]
        return lines if self._random.random() < 0.7 else [*lines, "finally:", *self._block()]

    def _with(self) -> list[str]:
        heads = ["torch.no_grad()", "torch.enable_grad()", "contextlib.nullcontext()", "torch.set_grad_enabled({c})"]
        heads += ["contextlib.suppress(ZeroDivisionError)", "torch.autograd.profiler.record_function('part')"]
        return [f"with {self._filled(self._random.choice(heads))}:", *self._block()]

    def _filled(self, text: str) -> str:
        """With a value in each hole; new names have one only behind the text."""
        self._count += 1
        new: dict[str, str] = {}
        made = _HOLE.sub(lambda hole: self._hole(hole[1], new), text).replace("{{", "{").replace("}}", "}")
        for hole, name in new.items():
            self._scope[hole].append(name)
            if hole == "o":
                self._scope["t"].append(name)
        return made

    def _hole(self, hole: str, new: dict[str, str]) -> str:
        if hole == "n":
            return str(self._count)
        if hole.startswith("+"):
            return new.setdefault(hole[1:], f"{hole[1:]}{self._count}")
        return self._value("t" if hole == "u" else hole)

    def _value(self, kind: str) -> str:
        names = self._scope.get(kind, [])
        if kind in ("o", "v"):
            return self._random.choice(names) if names else self._written(kind)
        if kind == "t" or (names and self._random.random() < 0.5):
            return self._random.choice(names[-2:] if self._random.random() < 0.7 else names)
        count, text = self._count, self._filled(self._random.choice(words.NUMBERS[kind]))
        self._count = max(count, self._count)
        return text

    def _written(self, kind: str) -> str:
        """An expression in place of a name that nobody has made yet."""
        return "y" if kind == "o" else "y[:, 1:]"

    # ---------------------------------------------------------------- script

    def _step(self, number: int) -> list[str]:
        kinds = list(words.STEPS)
        kind = "training" if number == 0 else self._random.choices(kinds, [words.STEPS[k][0] for k in kinds])[0]
        n = self._random.choice([self._size] * 9 + [7, 7, 3, 1, 0]) if number else self._size
        lines = [f"x = {self._argument(n)}", f"y = {self._argument(n, plain=0.7)}"]
        lines += self._call_text(words.STEPS[kind][1], n).strip("\n").split("\n")
        return [
            f"def {kind}_{number}(net, draw, see, total, tensors, backward, update_parameters):",
            *(f"    {x}" for x in lines),
        ]

    def _argument(self, n: int, plain: float = 0.2) -> str:
        text = words.INPUTS[0] if self._random.random() < plain else self._random.choice(words.INPUTS)
        return text.replace("{n}", str(n))

    def _call_text(self, text: str, n: int) -> str:
        def hole(found: re.Match[str]) -> str:
            known = {"n": str(n), "training": str(self._random.random() < 0.5)}
            known |= {
                "number": str(self._random.randint(1, 5)),
                "float": str(self._random.choice([0.3, 0.5, 0.8, 1.1])),
            }
            known |= {"attribute": self._random.choice(words.ATTRIBUTES)}
            if found[1].startswith("call"):
                optional = self._random.choice([*words.OPTIONAL, "", ""])
                return ", ".join(["x", "y", *([self._call_text(optional, n)] if optional else [])])
            return known[found[1]]

        return _HOLE.sub(hole, text).replace("{{", "{").replace("}}", "}")


def _assembled(forward: list[str], steps: list[list[str]]) -> str:
    """The program, with what its texts name and nothing else."""
    body = "\n".join(f"        {line}" for line in forward)
    script = "\n\n\n".join("\n".join(step) for step in steps)
    members = _members(body + script)
    init = "\n".join(f"        {line}" for name in members for line in _set(name).split("\n"))
    net = f"class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n{init}\n\n"
    net += f"    def forward(self, x, y, k=1, r=0.5, *rest, mask=None, extra=None):\n{body}\n"
    beside = "\n".join(words.DEFINITIONS[name] for name in _named(words.DEFINITIONS, net + script))
    names = ", ".join(re.match(r"def (\w+)", step[0])[1] for step in steps)  # type: ignore[index]
    return f"{words.HEAD}\n{beside}\n\n{net}\n\n{script}\n\n\nSTEPS = [{names}]\n"


def _members(text: str) -> list[str]:
    """Those of ``words.MEMBERS`` that the text names, and those that these name."""
    found = {name for name in words.MEMBERS if re.search(rf"(self|net)\.{name}\b", text)}
    while True:
        more = {m for name in found for m in words.MEMBERS if re.search(rf"self\.{m}\b", words.MEMBERS[name])}
        if more <= found:
            return [name for name in words.MEMBERS if name in found]
        found |= more


def _set(name: str) -> str:
    value = words.MEMBERS[name]
    if name in words.BUFFERS:
        return f'self.register_buffer("{name}", {value}{", persistent=False" if name == "passing" else ""})'
    return f"self.{name} = {value}"


def _named(table: dict[str, str], text: str) -> Iterator[str]:
    return (name for name in table if re.search(rf"\b{name}\b", text) or (name == "Base" and "Derived" in text))
