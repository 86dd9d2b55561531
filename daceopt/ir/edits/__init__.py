"""Edits of schedules, and of kernels together with their schedules, each checked."""
