"""Quantities and names as people read them."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def amount(value: float, unit: str = "") -> str:
    """``1234567, "B"`` -> ``1.23 MB``."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def duration(seconds: float) -> str:
    """``0.00123`` -> ``1.23 ms``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def percent(share: float | None) -> str:
    """``0.5`` -> ``50 %``; a dash for None."""
    return "-" if share is None else f"{share * 100:.0f} %"


def change(before: float, after: float, unit: str = "") -> str:
    """``before -> after``, or one value where they are equal."""
    first, last = amount(before, unit), amount(after, unit)
    return last if before == after else f"{first} -> {last}"


def plural(count: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def sentence(text: str) -> str:
    """``text`` with a capital letter; units keep theirs."""
    return text[:1].upper() + text[1:]


def printable(text: str) -> str:
    """Text of a model with its control characters shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
