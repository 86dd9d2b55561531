"""Rewrites as data, under the name that users' files import (a re-export)."""

from daceopt.passes.patterns import HERE as HERE
from daceopt.passes.patterns import Match as Match
from daceopt.passes.patterns import Pattern as Pattern
from daceopt.passes.patterns import PatternRule as PatternRule
from daceopt.passes.patterns import Then as Then
from daceopt.passes.patterns import constant as constant
from daceopt.passes.patterns import either as either
from daceopt.passes.patterns import maybe as maybe
from daceopt.passes.patterns import op as op
from daceopt.passes.patterns import over_root as over_root
from daceopt.passes.patterns import pattern_rule as pattern_rule
from daceopt.passes.patterns import polynomial as polynomial
from daceopt.passes.patterns import product as product
from daceopt.passes.patterns import scalar as scalar
from daceopt.passes.patterns import scaled as scaled
from daceopt.passes.patterns import square as square
from daceopt.passes.patterns import then as then
