"""Code of kernels, and the frame that calls them: what is printed for each kind of machine is a ``Target``."""
