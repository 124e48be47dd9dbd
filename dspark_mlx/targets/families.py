"""Where a model keeps its layers, embedding and head: one row per form of mlx-lm module tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from dspark_mlx.errors import UnsupportedError


@dataclass(frozen=True)
class Family:
    """`path` leads from the model to its list of decoder layers; its parent holds the embedding."""

    path: tuple[str, ...]
    head_owner: tuple[str, ...] = ()

    def layers(self, model: nn.Module) -> Sequence[Any]:
        """The decoder layers."""
        return _walk(model, self.path)

    def embedding(self, model: nn.Module) -> nn.Module:
        """The token embedding module."""
        return _walk(model, self.path[:-1])["embed_tokens"]

    def head(self, model: nn.Module) -> nn.Module:
        """The output head: a linear layer, or the embedding where the two are tied."""
        owner = _walk(model, self.head_owner)
        return owner["lm_head"] if "lm_head" in owner else self.embedding(model)


DEFAULT = Family(path=("model", "layers"))

# model_type -> where its parts are; everything not named here has the default form
FAMILIES: dict[str, Family] = {
    "gemma4": Family(path=("language_model", "model", "layers"), head_owner=("language_model",)),
}


def family_of(model: nn.Module, config: dict[str, Any]) -> Family:
    """The row for a model; raises UnsupportedError when its parts are not where expected."""
    family = FAMILIES.get(config.get("model_type", ""), DEFAULT)
    try:
        family.layers(model), family.embedding(model)
    except (KeyError, TypeError) as error:
        raise UnsupportedError(
            f"model type {config.get('model_type')!r} keeps its layers in an unknown place; "
            "it cannot be a target yet"
        ) from error
    return family


def _walk(model: Any, path: Sequence[str]) -> Any:
    for name in path:
        model = model[name]
    return model
