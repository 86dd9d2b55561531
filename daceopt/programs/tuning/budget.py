"""The option ``tune``: seconds, in several forms."""


def tuning_budget(tune: object) -> float | None:
    """The seconds that ``tune`` stands for; None for None. Raises TypeError and ValueError for what is no such time."""
    if tune is None:
        return None
    expected = f"tune={tune!r}; expected None, True, a number of seconds, or text such as '30s' or '2min'"
    if tune is True:
        return 10.0
    if isinstance(tune, bool) or not isinstance(tune, int | float | str):
        raise TypeError(f"{expected}, not {type(tune).__name__}")
    try:
        text = str(tune).strip()
        unit = 60.0 if text.endswith("min") else 1.0
        seconds = float(text.removesuffix("min").removesuffix("s")) * unit
    except ValueError:
        raise ValueError(expected) from None
    if not 0 < seconds < float("inf"):
        raise ValueError(expected)
    return seconds
