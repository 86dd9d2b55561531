"""Executes graphs and schedules with NumPy: the reference for everything else."""
