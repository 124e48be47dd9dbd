"""The folder that `dspark-mlx convert` writes: the config already states every convention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark_mlx.config import FORMAT, DrafterConfig

from .tensors import TensorInfo

NAME = "converted by dspark-mlx"


def matches(config: Mapping[str, Any]) -> bool:
    """Whether the config names our own format."""
    return config.get("format") == FORMAT


def resolve(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str
) -> DrafterConfig:
    """Read the config back; nothing has to be derived."""
    return DrafterConfig.from_dict(config, where)
