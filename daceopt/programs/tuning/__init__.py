"""The fastest way to run a program, found by running it: what is tried, the search, and what is kept of it."""
