"""What a loaded model is, by content: two folders of the same model are one, whatever their names.

Used to refuse what was stored for another model: sessions, calibrations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from .pair import Pair

SAMPLE = 64  # numbers read at the beginning, middle and end of each tensor
NAMES_ONLY = ("_name_or_path", "transformers_version", "source")  # config keys that are no content


def fingerprint(module: nn.Module, config: Mapping[str, Any]) -> str:
    """A SHA-256 of the config, of every tensor's name, shape and dtype, and of sampled weights.

    Precision and quantization count: the same model in bfloat16 is another one.
    """
    content = {k: v for k, v in config.items() if k not in NAMES_ONLY}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode())
    weights = sorted(tree_flatten(module.parameters()))
    samples = [_sample(array) for _, array in weights]
    mx.eval(samples)
    for (name, array), sample in zip(weights, samples, strict=True):
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        digest.update(np.array(sample).tobytes())
    return digest.hexdigest()


def fingerprints(pair: Pair) -> dict[str, str | None]:
    """Of the target and of the drafter (None for a plain pair, or one that has no weights)."""
    drafter = pair.drafter
    return {
        "target": fingerprint(pair.target.model, pair.target.config),
        "drafter": fingerprint(drafter, drafter.config.to_dict())
        if isinstance(drafter, nn.Module)
        else None,
    }


def _sample(array: mx.array) -> mx.array:
    flat = array.reshape(-1)
    middle = max(flat.size - SAMPLE, 0) // 2
    parts = [flat[:SAMPLE], flat[middle : middle + SAMPLE], flat[-SAMPLE:]]
    return mx.view(mx.concatenate(parts), mx.uint8)
