"""The node classes of graphs: operators, and the library nodes that stay whole."""
