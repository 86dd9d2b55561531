"""Schedules of kernels: trees of loops, guards and places of locals; as text, and in the form that edits take."""
