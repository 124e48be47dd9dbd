"""Every target family: taps change nothing, any drafter gives plain decoding's tokens."""

import functools
import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from dspark_mlx import stream
from dspark_mlx.errors import UnsupportedError
from dspark_mlx.loading import load_target
from dspark_mlx.targets.base import Target
from dspark_mlx.targets.families import MIXERS
from dspark_mlx.targets.replay import Rerun, Tape
from tests.checks import Waits, check_run
from tests.fakes import ScriptedDrafter, pair_with, scripts
from tests.families import (
    FAMILIES,
    OTHERS,
    VOCAB,
    family_run,
    family_target,
    quantizable,
    save_target,
)

EVERY = [*FAMILIES, *OTHERS]
TAPED = ["qwen3_5", "qwen3_5_moe", "qwen3_next", "lfm2", "nemotron_h"]
RERUN = ["falcon_h1", "jamba", "mamba", "recurrent_gemma"]
IDS = np.random.default_rng(7).integers(0, VOCAB, 40).tolist()


@pytest.mark.parametrize("family", EVERY)
def test_taps_change_no_bit(family):
    """Whole logits, in a prefill, a block and a single step; also when a block is taped."""
    target = family_target(family)
    layers = range(-1, target.depth)
    tapped, cache, own = target.tapped(layers), target.new_cache(), make_prompt_cache(target.model)
    for begin, end in ((0, 12), (12, 17), (17, 18), (18, 26), (26, 27)):
        ids = mx.array(IDS[begin:end])
        logits, features = tapped(ids, cache)
        want = target.model(ids[None], cache=own)[0]
        assert np.array_equal(np.array(logits), np.array(want))
        assert [f.shape for f in features] == [(end - begin, target.hidden_size)] * len(layers)
        one = target.tapped([1])(ids, _at(target, begin))[1][0]
        np.testing.assert_allclose(np.array(one), np.array(features[2]), atol=2e-4, rtol=1e-3)
    assert len({f.sum().item() for f in features}) == len(layers)


def _at(target, length):
    cache = target.new_cache()
    if length:
        target.tapped()(mx.array(IDS[:length]), cache)
    return cache


@pytest.mark.parametrize("family", EVERY)
def test_any_drafter(family):
    """Across the borders of windows (6 positions) and chunks (8), blocks longer and shorter."""
    target, reference = recorded(family, 27)
    for script, block, chunk in (
        ("wrong", 7, 2048),
        ("first 2 right", 7, 3),
        ("random or right", 4, 1),
    ):
        drafter = ScriptedDrafter(target, scripts(reference, VOCAB)[script], block=block)
        check_run(pair_with(target, drafter), reference, 26, prefill_step_size=chunk)


@functools.cache
def recorded(family, count, **changes):
    """The first seed without a near-tie whose text does not just repeat itself."""
    for seed in range(9):
        target, reference = family_run(family, count, seed=seed, **changes)
        if reference.margin > 5e-4 and len(set(reference.tokens)) > 5:
            return target, reference
    raise AssertionError("near-ties in all of nine seeds")


@pytest.mark.parametrize("family", EVERY)
def test_rejected_drafts_leave_no_trace(family):
    """Whatever part of a block stays, the next logits are those of the tokens that stayed."""
    target = family_target(family)
    run = target.tapped([0])
    whole, _ = run(mx.array(IDS[:24]), target.new_cache())
    cache = target.new_cache()
    steps = mx.concatenate([run(mx.array([token]), cache)[0] for token in IDS[:24]])
    tolerance = max(1e-5, 2 * mx.abs(whole - steps).max().item())
    for start, block in ((3, 8), (5, 2), (15, 5)):
        for kept in range(block + 1):
            cache = _at(target, start)
            wrong = [(token + 1) % VOCAB for token in IDS[start + kept : start + block]]
            run(mx.array(IDS[start : start + kept] + wrong), cache)
            cache.keep(start + kept)
            end, snapshot = start + kept, cache.snapshot()
            for rows in (1, 3):
                logits, _ = run(mx.array(IDS[end : end + rows]), cache)
                error = mx.abs(logits - steps[end : end + rows]).max().item()
                assert error <= tolerance, (start, block, kept, rows)
                cache.restore(snapshot)


@pytest.mark.parametrize("family", [*TAPED, *RERUN])
def test_what_a_rejection_costs(family, monkeypatch):
    """Known mixers: nothing but the states is run again. Others: the target, up to its caches."""
    target = family_target(family)
    calls = []
    forward = type(target.model).__call__
    monkeypatch.setattr(
        type(target.model), "__call__", lambda m, *a, **k: calls.append(m) or forward(m, *a, **k)
    )
    run, cache = target.tapped(), _at(target, 5)
    mx.eval(cache.arrays())
    for rows in (1, 8, Tape.MOST_ROWS + 1):
        before = len(calls)
        run(mx.array((IDS * 2)[:rows]), cache)
        cache.keep(cache.length - rows // 2)
        taped = family in TAPED and rows == 8
        assert len(calls) - before == (1 if taped or rows == 1 else 2)
    reads = []
    linear = nn.Linear.__call__
    monkeypatch.setattr(nn.Linear, "__call__", lambda m, x: reads.append(m) or linear(m, x))
    run(mx.array(IDS[:8]), cache)
    reads.clear()
    cache.keep(cache.length - 3)
    assert (reads == []) == (family in TAPED)


def test_table_of_mixers_is_tested():
    assert set(MIXERS) - {"lfm2_moe"} == {f for f in TAPED if f != "qwen3_5_moe"}


def test_a_replay_that_does_nothing_is_found():
    target = family_target("lfm2")
    cache = _at(target, 5)
    cache.mark()
    target.model(mx.array([IDS[:4]]), cache=cache.entries)
    cache.grew(4, type("Idle", (), {"whole": False, "__call__": lambda self, rows: None})())
    with pytest.raises(RuntimeError, match="not brought forward"):
        cache.keep(7)
    assert cache.length == 5
    cache.mark()
    target.model(mx.array([IDS[:4]]), cache=cache.entries)
    cache.grew(4)
    with pytest.raises(RuntimeError, match="replay"):
        cache.keep(7)


def test_an_incomplete_tape_is_not_used():
    target = family_target("qwen3_5")
    tape, cache = Tape(), _at(target, 5)
    assert not tape.covers(cache.recurrent())
    target.tapped()(mx.array(IDS[:4]), cache)
    cache.grew(0, Rerun(target.model, mx.array(IDS[:4]), cache))
    cache.keep(7)
    logits, _ = target.tapped()(mx.array([1]), cache)
    again = _at(target, 5)
    target.tapped()(mx.array(IDS[:2]), again)
    want, _ = target.tapped()(mx.array([1]), again)
    np.testing.assert_allclose(np.array(logits), np.array(want), atol=1e-4)


class _OddCache(KVCache):
    """A subclass may store its rows in another way."""


@pytest.mark.parametrize("family", ["qwen3", "falcon_h1"])
def test_unknown_caches_are_refused(family, monkeypatch):
    target = family_target(family)
    entries = make_prompt_cache(target.model)
    if family == "qwen3":
        entries[1] = _OddCache()
    else:
        entries[0].caches = (entries[0][0], _OddCache())
    monkeypatch.setattr(type(target.model), "make_cache", lambda model: entries, raising=False)
    with pytest.raises(UnsupportedError, match=r"_OddCache \(cache [01]\)"):
        target.check()


def test_unknown_forms_are_refused_at_load():
    """A head of another size, layers that hand on something else, layers in another place."""
    target = family_target("qwen3")
    target.check()
    config = target.config | {"vocab_size": VOCAB + 1}
    with pytest.raises(UnsupportedError, match=r"its head gives \(1, 48\)"):
        Target(target.model, config, "odd").check()
    with pytest.raises(UnsupportedError, match="layer -1 gives"):
        Target(target.model, target.config | {"hidden_size": 8}, "odd").check()
    with pytest.raises(UnsupportedError, match="'odd' keeps its layers in an unknown place"):
        Target(nn.Linear(2, 2), {"model_type": "odd"})


@pytest.mark.parametrize("family", FAMILIES)
def test_from_disk(family, tmp_path, fixtures):
    """Loaded from a folder, nested config and all: the same bits, the same shape."""
    target = family_target(family)
    folder = save_target(target, tmp_path / "target", fixtures / "target-qwen3")
    loaded = load_target(folder, "from disk", dtype=mx.float32)
    for name in ("depth", "vocab_size", "hidden_size", "context_limit", "family"):
        assert getattr(loaded, name) == getattr(target, name)
    rows = [t.tapped()(mx.array(IDS), t.new_cache())[0] for t in (target, loaded)]
    assert np.array_equal(*map(np.array, rows))


def test_nested_rope_of_a_nested_config(tmp_path, fixtures):
    """Transformers 5 nests rope twice over; the theta must not fall back to a default."""
    target = family_target("mistral3", rope_theta=321.0)
    folder = save_target(target, tmp_path / "target", fixtures / "target-qwen3")
    text = dict(target.config["text_config"])
    text["rope_parameters"] = {"rope_theta": text.pop("rope_theta"), "rope_type": "default"}
    (folder / "config.json").write_text(json.dumps(target.config | {"text_config": text}))
    loaded = load_target(folder, "from disk", dtype=mx.float32)
    rows = [t.tapped()(mx.array(IDS), t.new_cache())[0] for t in (target, loaded)]
    assert np.array_equal(*map(np.array, rows))


@pytest.mark.parametrize("family", EVERY)
def test_embedding_and_head(family):
    """Tied or not, nested or not, quantized or not: what a drafter borrows is the target's own."""
    target = family_target(family)
    table, head = target.embed(mx.arange(VOCAB)), target.head(mx.eye(target.hidden_size))
    tied = (target.config.get("text_config") or target.config).get("tie_word_embeddings")
    parameters = tree_flatten(target.model.parameters())
    heads = [v for k, v in parameters if k.endswith("lm_head.weight")]
    assert table.shape == (VOCAB, target.hidden_size)
    want = heads[0] if heads else table
    assert heads == [] or not tied
    np.testing.assert_allclose(np.array(head), np.array(want.T), atol=1e-6)
    nn.quantize(target.model, group_size=32, bits=8, class_predicate=quantizable)
    packed = target.head(mx.eye(target.hidden_size))
    assert packed.shape == (target.hidden_size, VOCAB)
    np.testing.assert_allclose(np.array(packed), np.array(head), atol=0.1)


@pytest.mark.parametrize("family", ["qwen3_5", "nemotron_h", "jamba", "gpt_oss"])
def test_one_wait_per_round(family, monkeypatch):
    """Bringing states forward is lazy: it is computed along with the next round."""
    target, reference = recorded(family, 27)
    drafter = ScriptedDrafter(target, scripts(reference, VOCAB)["first 2 right"])
    with monkeypatch.context() as patch:
        waits = Waits(patch)
        events = list(stream(pair_with(target, drafter), reference.prompt, max_tokens=20))
    assert waits.evals == events[-1].syncs == 2 + len(events) - 2
    assert waits.strays == []
