"""The version, in one place: read by setup and by ``daceopt.__version__``."""

__version__ = "0.1.0"
