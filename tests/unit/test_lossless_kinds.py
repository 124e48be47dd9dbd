"""Speculative greedy decoding equals plain decoding for every convention a drafter can have."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.config import DrafterConfig, LayerMask, MarkovConfig, RopeConfig
from dspark_mlx.drafters import build_drafter
from dspark_mlx.options import Options
from dspark_mlx.run import run_events

from ..checks import check_run
from ..fakes import pair_with, plain, seeded_weights, tiny_target

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MIXED = (LayerMask(4, True), LayerMask(None, False))
# name -> fields that differ from a plain drafter of two layers and block 7
BLOCKS = {
    "slot 1, borrowed tables": {"predict_from_slot": 1, "embeddings": "target", "head": "target"},
    "slot 1, mixed layers": {"predict_from_slot": 1, "layer_masks": MIXED},
    "causal": {"layer_masks": (LayerMask(None, True),) * 2, "markov": MarkovConfig("vanilla", 4)},
    "windows without causality": {"layer_masks": (LayerMask(5, False),) * 2},
    "sinks": {"attention_sinks": True, "layer_masks": MIXED},
    "interleaved": {"rope": RopeConfig(1e4, interleaved=True), "markov": MarkovConfig("gated", 4)},
    "yarn": {"rope": RopeConfig(1e4, scaling=YARN), "markov": MarkovConfig("rnn", 4)},
    "factors": {"embedding_scale": 3.0, "output_multiplier": 0.5, "logit_softcap": 4.0},
    "gated queries": {"attention_gate": True, "rope": RopeConfig(1e4, rotary_dims=4),
                      "markov": MarkovConfig("vanilla", 4)},
    "reduced vocabulary": {"draft_vocab_size": 5, "markov": MarkovConfig("vanilla", 4)},
}  # fmt: skip
EAGLES = {
    "qwen3": {},
    "llama": {"backbone": "llama"},
    "normed": {"norm_before_residual": True, "norm_output": True, "feature_norm": "joint"},
    "fc_norm, window": {"feature_norm": "each", "layer_masks": (LayerMask(4, True),)},
    "reduced vocabulary": {"backbone": "llama", "draft_vocab_size": 5},
}
EAGLE = {"kind": "eagle3", "num_hidden_layers": 1, "mask_token_id": None}


def drafter_of(target, seed, **fields):
    """A drafter of random weights for a fake target."""
    config = DrafterConfig(
        kind="dspark", backbone="qwen3", hidden_size=target.hidden_size, intermediate_size=40,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        rms_norm_eps=1e-6, vocab_size=target.vocab_size, rope=RopeConfig(1e4), block_size=7,
        mask_token_id=target.vocab_size - 1, target_layer_ids=(-1, 0, target.depth - 1),
        num_target_layers=None, dtype="float32",
    )  # fmt: skip
    config = dataclasses.replace(config, **fields).checked("test")
    drafter = build_drafter(config)
    seeded_weights(drafter, seed, {"embed_tokens": 4.0, "lm_head": 4.0, "markov": 2.0})
    if config.draft_vocab_size:
        numbers = np.random.default_rng(seed)
        kept = sorted(numbers.choice(target.vocab_size, config.draft_vocab_size, replace=False))
        drafter.draft_ids = mx.array(np.array(kept, np.int32))
    drafter.bind(target)
    return drafter


def check(fields, name):
    """Every limit and block; returns how many drafts were accepted."""
    accepted = 0
    for seed, vocab in ((0, 6), (3, 9)):
        target = tiny_target(seed, "qwen3", vocab)
        reference = plain(target, [1, 2, 3, 1, 5], 41)
        assert reference.margin > 5e-4, "a near-tie: choose another seed"
        drafter = drafter_of(target, seed + 20, **fields)
        pair = pair_with(target, drafter)
        most = drafter.drafts_of(7)
        for options in ({}, {"block_size": 3}, {"cutoff": "fixed:2"}, {"prefill_step_size": 2}):
            rounds = check_run(pair, reference, 40, **options)
            assert all(len(r.proposed) <= most for r in rounds), name
            accepted += sum(r.accepted for r in rounds)
        for limit in (1, 2, 9):
            check_run(pair, reference, limit)
        first = check_run(pair, reference, 40)[0]
        assert len(first.proposed) == most
        if drafter.config.draft_vocab_size:
            kept = set(drafter.draft_ids.tolist())
            assert all(set(r.proposed) <= kept for r in check_run(pair, reference, 40))
    return accepted


@pytest.mark.parametrize("name", BLOCKS)
def test_block_drafters(name):
    assert check(BLOCKS[name], name) > 0


@pytest.mark.parametrize("name", EAGLES)
def test_eagle3(name):
    assert check(EAGLE | EAGLES[name], name) > 0


@pytest.mark.parametrize("fields", [BLOCKS["reduced vocabulary"], BLOCKS["slot 1, mixed layers"],
                                    EAGLE | EAGLES["reduced vocabulary"]])  # fmt: skip
def test_sampling_runs_and_proposes(fields):
    """The draft distribution lies over the target's vocabulary, and sums to one."""
    target = tiny_target(1, "qwen3", 9)
    drafter = drafter_of(target, 7, **fields)
    pair = pair_with(target, drafter)
    events = list(run_events(pair, (1, 2, 3), Options.of(max_tokens=30, temperature=1.0, seed=5)))
    assert sum(len(e.proposed) for e in events[1:-1]) > 0
    context = drafter.start()
    _, features = pair.tapped(mx.array([1, 2, 3]), target.new_cache())
    drafter.extend(context, features, mx.array([2, 3, 4]))

    def draw(logits):
        probs = mx.softmax(logits, axis=-1)
        return mx.argmax(logits, axis=-1), probs

    probs = drafter.propose(context, 4, 7, drafter.drafts_of(7), draw).probs
    assert probs.shape == (drafter.drafts_of(7), 9)
    np.testing.assert_allclose(np.array(probs.sum(axis=-1)), 1.0, atol=1e-6)


def test_a_window_hides_older_context():
    """A feature older than the window moves nothing, one inside it does (P18)."""
    target = tiny_target(0, "qwen3", 9)
    drafter = drafter_of(target, 3, layer_masks=(LayerMask(8, True),) * 2)
    base = [mx.random.normal((20, 32), key=mx.random.key(i)) for i in range(3)]

    def logits(changed):
        context, rows = drafter.start(), []
        parts = [f.at[changed].add(5.0) if changed is not None else f for f in base]
        drafter.extend(context, parts, mx.zeros((20,), mx.int32))
        drafter.propose(context, 1, 7, 7, lambda x: (rows.append(x), (mx.argmax(x, -1), None))[1])
        return mx.concatenate(rows)

    plain_rows = logits(None)
    assert mx.array_equal(logits(12), plain_rows)  # row 0 stands at 20 and sees 13 on
    assert not mx.array_equal(logits(13), plain_rows)
    assert not mx.array_equal(logits(13)[0], plain_rows[0])
