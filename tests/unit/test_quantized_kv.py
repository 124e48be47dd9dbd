"""Quantized KV caches: mlx-lm's own tokens with the same settings, or a refusal at load."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from dspark_mlx import load
from dspark_mlx.cache import KVQuantization
from dspark_mlx.errors import CheckpointError, OptionError, UnsupportedError
from tests.checks import check_run
from tests.fakes import ScriptedDrafter, pair_with, plain, scripts
from tests.families import FAMILIES, OTHERS, VOCAB, family_target, quantizable, save_target

REFUSED = {
    "gemma3_text": "RotatingKVCache Quantization NYI",
    "gemma4_text": "RotatingKVCache Quantization NYI",
    "gpt_oss": "attention sinks|RotatingKVCache",
    "muse_glimmer": "RotatingKVCache Quantization NYI",
    "recurrent_gemma": "RotatingKVCache Quantization NYI",
    "falcon_h1": "no quantized form of CacheList",
    "mamba": "no quantized form of ArraysCache",
}
WIDE = {"hidden_size": 64, "head_dim": 32, "num_attention_heads": 2}
PROMPT = [3, 1, 4, 1, 5, 9, 2]


SETTINGS = [(8, 0), (4, 3), (4, 11), (8, 20)]
QUICK = [
    ("qwen3", *SETTINGS[0]),
    ("qwen3", *SETTINGS[1]),
    *((f, *SETTINGS[2]) for f in ("mistral3", "qwen3_5", "lfm2", "nemotron_h", "llama4")),
]
ALL = [(f, *s) for f in (*FAMILIES, *OTHERS) if f not in REFUSED for s in SETTINGS]


@pytest.mark.parametrize(
    ("family", "bits", "start"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in ALL],
)
def test_equals_mlx_lm_with_the_same_settings(family, bits, start):
    """Also where quantization starts in the prompt, at its end, or in the middle of a block.

    A value that lies on the edge between two levels may be rounded to either, so that logits
    differ by far more than float32 does; the margins are still larger.
    """
    kv = KVQuantization(bits, 32, start)
    settings = {"kv_bits": bits, "kv_group_size": 32, "quantized_kv_start": start}
    target, reference = _recorded(family, settings)
    target.kv = kv
    for script in ("wrong", "first 2 right", "oracle"):
        drafter = ScriptedDrafter(target, scripts(reference, VOCAB)[script])
        rounds = check_run(
            pair_with(target, drafter), reference, 30, atol=2e-2, prefill_step_size=3
        )
        cache = target.caches[-1]
        kinds = [type(entry) for entry in cache.entries]
        assert QuantizedKVCache in kinds
        assert KVCache not in kinds
        for event in rounds:  # no block reaches over the border
            begin, end = event.anchor_position, event.anchor_position + event.verified + 1
            assert not begin < start < end
        assert script != "oracle" or max(r.verified for r in rounds) == 7


def _recorded(family, settings):
    for seed in range(30):
        target = family_target(family, seed, **WIDE)
        reference = plain(target, PROMPT, 31, prefill_step_size=3, **settings)
        if reference.margin > 1e-2:
            return target, reference
    raise AssertionError("near-ties in all of thirty seeds")


def test_it_is_quantized():
    """Other logits than unquantized, and fewer bytes (P17)."""
    target = family_target("qwen3", **WIDE)
    ids = np.random.default_rng(1).integers(0, VOCAB, 300)
    logits, sizes = [], []
    for bits in (None, 8, 4):
        cache = target.new_cache(bits, 32)
        for part in np.split(ids, 3):
            rows, _ = target.tapped()(mx.array(part), cache)
        mx.eval(rows)
        logits.append(np.array(rows))
        sizes.append(sum(entry.nbytes for entry in cache.entries) / cache.length)
    assert 0 < np.abs(logits[0] - logits[1]).max() < np.abs(logits[0] - logits[2]).max()
    # how much padding each holds differs; the bytes of a row are what counts
    assert sizes[0] > 2 * sizes[1] > 2 * sizes[2]


@pytest.mark.parametrize("family", REFUSED)
def test_refused_at_the_call(family):
    target = family_target(family, **WIDE)
    with pytest.raises(UnsupportedError, match=REFUSED[family]) as error:
        target.new_cache(8, 32)
    assert str(error.value).startswith(f"{family}: KV caches cannot be quantized to 8 bits")
    assert "\n" not in str(error.value)
    target.kv = KVQuantization(8, 32)
    with pytest.raises(UnsupportedError, match="KV caches"):
        target.check()


def test_values_that_make_no_sense():
    target = family_target("qwen3", **WIDE)
    for values, words in (
        ((0,), "kv_bits must be"),
        ((True,), "kv_bits must be"),
        ((8, 0), "kv_group_size must be"),
        ((8, 64, -1), "quantized_kv_start must be"),
    ):
        with pytest.raises(OptionError, match=words):
            target.new_cache(*values)
    for bits, group in ((7, 32), (8, 48), (8, 64)):  # heads are 32 wide
        with pytest.raises(UnsupportedError, match=f"{bits} bits in groups of {group}"):
            target.new_cache(bits, group)
    with pytest.raises(OptionError, match="mean nothing without kv_bits"):
        load("anything", kv_group_size=32)


def test_what_quantizing_closes_off():
    """A past from before the border cannot be gone back to: a fresh run would not have it so."""
    target = family_target("qwen3", **WIDE)
    cache = target.new_cache(8, 32, 10)
    run = target.tapped()
    assert cache.rows_until_border() == 10
    run(mx.array(PROMPT), cache)
    early = cache.snapshot()
    assert cache.rows_until_border() == 3
    assert cache.can_trim_to(2)
    run(mx.array([1, 2, 3]), cache)
    assert cache.rows_until_border() is None
    assert cache.can_restore(early)
    run(mx.array([4, 5]), cache)
    assert {type(entry) for entry in cache.entries} == {QuantizedKVCache}
    assert [n for n in range(13) if cache.can_trim_to(n)] == [10, 11, 12]
    assert not cache.can_restore(early)
    assert not cache.trims_freely


def test_saved_and_loaded(tmp_path):
    target = family_target("qwen3_5", **WIDE)
    target.kv, path = KVQuantization(8, 32, 6), tmp_path / "c.safetensors"
    cache = target.new_cache()
    for part in (PROMPT, [1, 2]):
        target.tapped()(mx.array(part), cache)
    cache.save(path)
    loaded, _ = target.load_cache(path)
    assert not loaded.can_trim_to(5)
    rows = [np.array(target.tapped()(mx.array([7, 8]), c)[0]) for c in (cache, loaded)]
    assert np.array_equal(*rows)
    target.kv = KVQuantization(4, 32, 6)
    with pytest.raises(CheckpointError, match="cache 1 is QuantizedKVCache"):
        target.load_cache(path)


def test_through_load(fixtures, tmp_path):
    """The option reaches the caches of a loaded pair; where it cannot hold, loading fails."""
    folder = save_target(family_target("qwen3", **WIDE), tmp_path / "t", fixtures / "target-qwen3")
    pair = load(folder, False, kv_bits=8, kv_group_size=32, quantized_kv_start=4)
    assert pair.target.kv == KVQuantization(8, 32, 4) == pair.target.new_cache().quantization
    with pytest.raises(UnsupportedError, match="cannot be quantized"):
        load(fixtures / "target-gemma4", False, kv_bits=8, kv_group_size=32)


@pytest.mark.parametrize("family", FAMILIES)
def test_quantized_weights(family):
    """A quantized target is judged by its own plain decoding."""
    target = family_target(family, 1, **(WIDE if family != "nemotron_h" else {}))
    nn.quantize(target.model, group_size=32, bits=4, class_predicate=quantizable)
    assert any("scales" in name for name, _ in tree_flatten(target.model.parameters()))
    reference = plain(target, PROMPT, 21)
    for script in ("first 2 right",):
        drafter = ScriptedDrafter(target, scripts(reference, VOCAB)[script])
        check_run(pair_with(target, drafter), reference, 20, prefill_step_size=3)
