"""Rewrites as data, under the name that users' files import (a re-export)."""

from daceopt.passes.patterns import (
    HERE,
    Match,
    Pattern,
    PatternRule,
    Then,
    constant,
    either,
    maybe,
    op,
    over_root,
    pattern_rule,
    polynomial,
    product,
    scalar,
    scaled,
    square,
    then,
)

__all__ = [
    *("HERE", "Match", "Pattern", "PatternRule", "Then", "constant", "either", "maybe", "op", "over_root"),
    *("pattern_rule", "polynomial", "product", "scalar", "scaled", "square", "then"),
]
