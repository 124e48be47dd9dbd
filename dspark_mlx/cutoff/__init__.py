"""Cutoff policies, and the names that the command line and the library know them by."""

from __future__ import annotations

from collections.abc import Callable

from dspark_mlx.errors import OptionError

from .base import Cutoff
from .full import Fixed, Full
from .threshold import Threshold

__all__ = ["KNOWN", "POLICIES", "Cutoff", "Fixed", "Full", "Threshold", "parse_cutoff"]


def parse_cutoff(value: str | Cutoff) -> Cutoff:
    """`"full"`, `"fixed:N"`, `"threshold:T"`, or a policy object, which is returned as it is."""
    if not isinstance(value, str):
        if callable(getattr(value, "cap", None)) and callable(getattr(value, "cut", None)):
            return value
        raise OptionError(f"cutoff must be a name or a policy with cap and cut, not {value!r}")
    name, _, argument = value.partition(":")
    if name not in POLICIES:
        raise OptionError(f"unknown cutoff {value!r}; known: {KNOWN}")
    return POLICIES[name](argument)


def _full(argument: str) -> Cutoff:
    if argument:
        raise OptionError(f"cutoff full takes no value, not {argument!r}")
    return Full()


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


POLICIES: dict[str, Callable[[str], Cutoff]] = {
    "full": _full,
    "fixed": _fixed,
    "threshold": _threshold,
}
KNOWN = "full, fixed:N, threshold:T"
