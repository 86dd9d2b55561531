"""Kernels as isl's sets and relations: instances, dependences, schedules, and isl's scheduler."""
