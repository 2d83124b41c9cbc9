"""The exception that means: a person can put this right. It is shown as one line, with exit code 2 and no traceback."""


class UserError(Exception):
    """What was given, what is allowed, what to do: in one line."""


class Ended(Exception):
    """A command came to an end that it was not made for; also one line, with this exit code."""

    exit_code = 1


def did_you_mean(name: str, known: list[str] | tuple[str, ...]) -> str:
    """A hint with the nearest known name, or the list of all of them."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
