"""Kinds of drafter, each one file behind the protocol of `base.Drafter`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dspark_mlx.errors import UnsupportedError

if TYPE_CHECKING:
    from dspark_mlx.config import DrafterConfig

# (kind, backbone form) as a converted config states them -> where the class lives
KINDS = {
    ("dspark", "qwen3"): "dspark:DSpark",
    ("dspark", "gemma4"): "dspark:DSpark",
    ("eagle3", "qwen3"): "eagle3:Eagle3",
    ("eagle3", "llama"): "eagle3:Eagle3",
    ("eagle3", "gemma4"): "eagle3:Eagle3",
}


def build_drafter(config: DrafterConfig) -> Any:
    """An untrained drafter module of the config's kind and form."""
    key = (config.kind, config.backbone)
    if key not in KINDS:
        known = "; ".join(f"{kind} ({form} form)" for kind, form in sorted(KINDS))
        raise UnsupportedError(
            f"a {config.kind} drafter of {config.backbone} form is not supported yet; "
            f"supported: {known}"
        )
    module, name = KINDS[key].split(":")
    return getattr(import_module(f"{__name__}.{module}"), name)(config)
