"""Real DSpark drafters with random weights, made through the package's own builder."""

from __future__ import annotations

from dspark_mlx.config import ConfidenceConfig, DrafterConfig, MarkovConfig, RopeConfig
from dspark_mlx.drafters import build_drafter

from .fakes import seeded_weights


def random_dspark(target, seed, *, block=7, markov=True, confidence="markov", own=True):
    """`confidence` is None, "plain" or "markov"; `own` False borrows embedding and head."""
    config = DrafterConfig(
        kind="dspark", backbone="qwen3", hidden_size=target.hidden_size, intermediate_size=40,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        rms_norm_eps=1e-6, vocab_size=target.vocab_size, rope=RopeConfig(1e4), block_size=block,
        mask_token_id=target.vocab_size - 1, target_layer_ids=(-1, 0, target.depth - 1),
        num_target_layers=target.depth,
        embeddings="own" if own else "target", head="own" if own else "target",
        markov=MarkovConfig("vanilla", 4) if markov else None,
        confidence=ConfidenceConfig(confidence == "markov") if confidence else None,
        dtype="float32",
    ).checked("test")  # fmt: skip
    drafter = build_drafter(config)
    gains = {"embed_tokens": 4.0, "lm_head": 4.0, "markov": 2.0, "confidence": 3.0}
    seeded_weights(drafter, seed, gains)
    drafter.bind(target)
    return drafter


DSPARK_FORMS = [
    {"markov": True, "confidence": "markov", "own": True},
    {"markov": True, "confidence": "plain", "own": False},
    {"markov": True, "confidence": None, "own": True},
    {"markov": False, "confidence": "plain", "own": False},
    {"markov": False, "confidence": None, "own": True},
]
