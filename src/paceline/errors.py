"""The errors that are shown as one line without a traceback, and the hint "did you mean"."""

import difflib
import re
import signal
from collections.abc import Collection
from pathlib import Path

SECRETS = (
    r"(://[^/\s:@]*:)[^\s@]+(?=@)",
    r"([?&][\w-]*(?:signature|credential|token|key|sig)[\w-]*=)[^&\s'\"]+",
    r"(\b[\w.-]*(?:secret|password|token|credential|access[._-]?key)[\w.-]*=)[^\s'\"]+",
)
"""What a person may have given in a URL or a setting, and no other person should read."""


class UserError(Exception):
    """You can correct this error. The message says what was given, what is allowed, what to do."""

    started = False
    """Whether training had begun when it was raised."""
    saved = False
    """Whether a checkpoint was saved before."""


class PassingFault(UserError):
    """A file cannot be used now, and the cause may pass: a disk, a mount or a network failed. It is
    shown only if neither a few seconds nor a restart of the workers helps."""


class AddressTaken(UserError):
    """A worker cannot listen at its address. If Paceline chose the address, it tries another."""


class Ended(Exception):
    """A command ended before it was done, with `exit_code`."""

    exit_code = 1


class WorkerFailed(Ended):
    """A worker ended unexpectedly or hangs; the text has its name, its error and its log."""

    started = False
    saved = False

    def __init__(self, name: str, reason: str, log: Path | None) -> None:
        super().__init__(f"{name} failed: {reason}" + (f"; its log is {log}" if log else ""))
        self.reason = reason


class Interrupted(Ended):
    """A signal ended the run.

    After the first signal, workers save a checkpoint and exit. A second one, or one before training
    began, ends them at once.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + (signal.SIGTERM if number == signal.SIGUSR1 else number)


def printable(text: str) -> str:
    """Return a text without control characters: names may come from strangers."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def public(text: str) -> str:
    """Return a message for people: printable, with secrets masked."""
    for secret in SECRETS:
        text = re.sub(secret, r"\1***", text, flags=re.IGNORECASE)
    return printable(text)


def first_line(error: object) -> str:
    """Return the first line of an error's message, or its type if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a hint with the nearest known name, whatever its case, or else with all of them."""
    by_lower = {each.lower(): each for each in known}
    if near := difflib.get_close_matches(name.lower(), by_lower, n=1):
        return f"did you mean {by_lower[near[0]]!r}?"
    return f"known: {', '.join([*known][:30])}{' ...' if len(known) > 30 else ''}"


def address_taken(address: str) -> AddressTaken:
    """Return the error of a worker whose own address another program has."""
    return AddressTaken(
        f"cannot listen at {address}: another program has its port; end it, or use another port"
    )
