"""Networks of many equal layers: programs are derived with a few of them, and the others are copies.

What a recipe makes of a network with 24 equal layers repeats what it makes of one with 4. So the imported graph is
shortened (``shortening``), the recipe runs on what is left, and its result is lengthened again (``lengthening``): nodes
of one layer, forward and backward, are copied over the arrays of each layer that was left out. A copy is made only
where the result of the recipe is seen to repeat from layer to layer (``families``); else the whole graph is derived.
"""
