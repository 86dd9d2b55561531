"""The recipe ``auto``: the best one for this machine; so far that is ``cpu`` everywhere."""

from dataclasses import replace

from daceopt.recipes.cpu import cpu

auto = replace(cpu, name="auto")
