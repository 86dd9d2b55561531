"""Transformation and what its methods give, under the name that users' files import (a re-export)."""

from daceopt.passes.transform import NearMiss, Outcome, Site, Transformation

__all__ = ["NearMiss", "Outcome", "Site", "Transformation"]
