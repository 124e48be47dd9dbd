"""The rotary embedding that a source config asks for, and what of it to ignore."""

from __future__ import annotations

import math
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

from dspark_mlx.config import RopeConfig
from dspark_mlx.config_rules import is_positive
from dspark_mlx.errors import UnsupportedError

from .reading import Config, flag, refuse


def theta(value: Any, where: str) -> float:
    """A rope base, checked to be a positive number."""
    if not is_positive(value):
        refuse(where, f"rope_theta is {short(value)}, expected a positive number")
    return float(value)


def read_rope(flat: Config, where: str, scaled: bool = False) -> RopeConfig:
    """Whole-head rotation; scaling fields count only where the drafter was `scaled` in training.

    In DeepSpec's lineage they are a copy of the target's config and had no part in it.
    """
    nested = flat.get("rope_parameters")
    nested = nested if isinstance(nested, Mapping) else {}
    inner, outer = nested.get("rope_theta"), flat.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        refuse(where, f"rope_theta is {short(outer)}, but rope_parameters has {short(inner)}")
    neox = flag(flat, "rope_is_neox_style", where, default=True)
    scaling = _scaling(flat.get("rope_scaling") or nested, where) if scaled else None
    base = theta(inner if outer is None else outer, where)
    return RopeConfig(base, interleaved=not neox, scaling=scaling)


# rope type -> what its parameters must be and may be
SCALINGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        (),
    ),
    "linear": (("factor",), ()),
}
_UNSCALED = ("rope_theta", "rope_type", "type", "partial_rotary_factor")


def _scaling(stated: Any, where: str) -> dict[str, Any] | None:
    if not isinstance(stated, Mapping):
        refuse(where, f"rope_scaling is {short(stated)}, expected an object")
    kind = stated.get("rope_type") or stated.get("type") or "default"
    if stated.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise UnsupportedError(f"{where}: partial_rotary_factor is not supported in this packaging")
    if kind == "default":
        return None
    if not isinstance(kind, str) or kind not in SCALINGS:
        known = ", ".join(SCALINGS)
        raise UnsupportedError(f"{where}: rope type {short(kind)} is not supported; known: {known}")
    needed, optional = SCALINGS[kind]
    given = {k: v for k, v in stated.items() if k not in _UNSCALED and v is not None}
    if unknown := sorted(set(given) - {*needed, *optional, "attention_factor", "truncate"}):
        raise UnsupportedError(f"{where}: {kind} rope with {', '.join(unknown)} is not supported")
    if missing := [k for k in needed if k not in given]:
        refuse(where, f"rope_scaling: missing {', '.join(missing)} of {kind} rope")
    taken = {k: v for k, v in given.items() if k in (*needed, *optional)}
    if bad := [k for k, v in taken.items() if not is_positive(v) and v != 0]:
        refuse(where, f"rope_scaling: {bad[0]} is {short(taken[bad[0]])}, expected a number")
    _check_plain_yarn(given, where)
    return {"rope_type": kind, **taken}


def _check_plain_yarn(given: Config, where: str) -> None:
    # mlx-lm computes the factor on lengths itself, and rounds the ramp's ends
    stated, cut = given.get("attention_factor"), given.get("truncate", True)
    usual = 0.1 * math.log(given["factor"]) + 1.0 if given["factor"] > 1 else 1.0
    if stated is not None and not ("mscale" not in given and _near(stated, usual)):
        raise UnsupportedError(f"{where}: yarn with attention_factor {short(stated)} is not read")
    if cut is not True:
        raise UnsupportedError(f"{where}: yarn with truncate {short(cut)} is not read")


def _near(value: Any, usual: float) -> bool:
    return is_positive(value) and abs(value - usual) < 1e-6
