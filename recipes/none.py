"""The recipe ``none``: operators are lowered and nothing is optimized; what every other recipe is compared with."""

from daceopt.passes.recipe import Recipe

none = Recipe("none", ("lower-operators{keep_rules=True}", "differentiate", "lower-operators"))
