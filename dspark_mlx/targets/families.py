"""Where models keep their layers, embedding and head, and what families need beside that.

Most of mlx-lm's models have one of three module trees, tried in order. A family with another
tree gets a row in `FORMS`; one with recurrent layers whose projections can be kept gets a row
in `MIXERS` (without it a rejected draft costs a forward of the accepted rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.nn as nn

from dspark_mlx.errors import UnsupportedError


@dataclass(frozen=True)
class Family:
    """`path` leads from the model to its list of decoder layers; its parent holds the embedding.

    `owner` is the path to the module that holds body and head.
    """

    path: tuple[str, ...]
    owner: tuple[str, ...] = ()
    embedding_name: str = "embed_tokens"
    mixer: str | None = None  # the child of a layer that is called with a recurrent state

    def layers(self, model: nn.Module) -> Sequence[Any]:
        """The decoder layers."""
        return _walk(model, self.path)

    def embedding(self, model: nn.Module) -> nn.Module:
        """The token embedding module."""
        return _walk(model, self.path[:-1])[self.embedding_name]

    def head(self, model: nn.Module) -> nn.Module:
        """The output head: a linear layer, or the embedding where the two are tied."""
        owner = _walk(model, self.owner)
        if "lm_head" in owner:
            return owner["lm_head"]
        body = self.path[len(self.owner)]
        if strange := [name for name in owner.children() if name != body]:
            raise UnsupportedError(
                f"no `lm_head`, and not tied: the head may be one of {', '.join(strange)}"
            )
        return self.embedding(model)


FORMS = (
    Family(path=("model", "layers")),
    Family(path=("language_model", "model", "layers"), owner=("language_model",)),
    Family(path=("backbone", "layers"), embedding_name="embeddings"),
)

# module of mlx_lm.models that defines the language model -> the child of its recurrent layers
# that maps rows and a state to rows (see `replay.Tape` for what such a child must be like)
MIXERS: dict[str, str] = {
    "qwen3_5": "linear_attn",  # and qwen3_5_moe: gated delta-net
    "qwen3_next": "linear_attn",
    "lfm2": "conv",  # short convolution
    "lfm2_moe": "conv",
    "nemotron_h": "mixer",  # Mamba-2
}


def family_of(model: nn.Module, config: dict[str, Any]) -> Family:
    """The form of a model; raises UnsupportedError when its parts are not where expected."""
    for form in FORMS:
        try:
            form.layers(model), form.embedding(model)
        except (KeyError, TypeError):
            continue
        language_model = _walk(model, form.owner)
        module = type(language_model).__module__.rpartition(".")[2]
        return Family(form.path, form.owner, form.embedding_name, MIXERS.get(module))
    raise UnsupportedError(
        f"model type {config.get('model_type')!r} keeps its layers in an unknown place; "
        "it cannot be a target yet"
    )


def _walk(model: Any, path: Sequence[str]) -> Any:
    for name in path:
        model = model[name]
    return model
