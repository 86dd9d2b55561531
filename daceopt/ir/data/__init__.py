"""The arrays of a graph: what each is, views and parts of it, where it comes from in the model."""
