"""Graphs as text that says all of them, and back."""
