"""Rewrites of the operator graph: folding, lifting of compound operators, clean-up."""
