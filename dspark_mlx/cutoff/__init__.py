"""Cutoff policies, and the names that the command line and the library know them by."""

from __future__ import annotations

from collections.abc import Callable

from dspark_mlx.errors import OptionError

from .auto import Auto
from .base import Cutoff, Decider, Outcome, Plan, Setting
from .full import Fixed, Full
from .paper import Hindsight, Paper
from .threshold import Threshold

__all__ = [
    "KNOWN", "POLICIES", "Auto", "Cutoff", "Decider", "Fixed", "Full", "Hindsight", "Outcome",
    "Paper", "Plan", "Setting", "Threshold", "parse_cutoff",
]  # fmt: skip


def parse_cutoff(value: str | Cutoff) -> Cutoff:
    """A policy by its name (see `KNOWN`), or a policy object, which is returned as it is."""
    if not isinstance(value, str):
        if callable(getattr(value, "start", None)):
            return value
        raise OptionError(f"cutoff must be a name or a policy with a start method, not {value!r}")
    name, colon, argument = value.partition(":")
    if name not in POLICIES:
        raise OptionError(f"unknown cutoff {value!r}; known: {KNOWN}")
    make = POLICIES[name]
    if name in ARGUMENTS:
        return make(argument)
    if colon:
        raise OptionError(f"cutoff {name} takes no value, not {argument!r}")
    return make()


def _fixed(argument: str) -> Cutoff:
    if not argument.isdecimal():
        raise OptionError(f"cutoff fixed needs a number of drafts, as in fixed:3, not {argument!r}")
    return Fixed(int(argument))


def _threshold(argument: str) -> Cutoff:
    try:
        value = float(argument)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise OptionError(
            f"cutoff threshold needs a number from 0 to 1, as in threshold:0.6, not {argument!r}"
        )
    return Threshold(value)


# name -> maker; those in ARGUMENTS take what follows the colon
POLICIES: dict[str, Callable[..., Cutoff]] = {
    "auto": Auto,
    "full": Full,
    "fixed": _fixed,
    "threshold": _threshold,
    "paper": Paper,
    "hindsight": Hindsight,
}
ARGUMENTS = {"fixed": "N", "threshold": "T"}
KNOWN = ", ".join(f"{name}:{ARGUMENTS[name]}" if name in ARGUMENTS else name for name in POLICIES)
