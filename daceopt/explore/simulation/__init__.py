"""Steps and networks as simulators have them: on accelerators with scratchpads, and over ranks."""
