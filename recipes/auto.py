"""The recipe ``auto``: ``cpu`` or ``apollo``, whichever the cost model says is faster for the program at hand.

With ``tune`` programs of both are measured instead, beside eager PyTorch (``daceopt/modules/tuning.py``).
"""

from daceopt.passes.choice import Choice
from daceopt.recipes.apollo import apollo
from daceopt.recipes.cpu import cpu

auto = Choice.of("auto", cpu, apollo)
