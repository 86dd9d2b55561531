"""A module for each package: its rows, and how its modules are built. Packages are imported when a row is built."""
