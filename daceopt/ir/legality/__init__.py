"""Whether a schedule does what its kernel says, and whether a machine can run it."""
