"""Speculative greedy decoding equals plain decoding for every convention a drafter can have."""

import dataclasses

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.config import (
    ConfidenceConfig,
    DrafterConfig,
    LayerMask,
    MarkovConfig,
    RopeConfig,
)
from dspark_mlx.drafters import build_drafter
from dspark_mlx.options import Options
from dspark_mlx.pair import Pair
from dspark_mlx.run import run_events

from ..checks import check_run
from ..fakes import ByteTokenizer, plain, seeded_weights, tiny_target

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
    "gemma4": {"backbone": "gemma4", "values_are_keys": True, "rope": RopeConfig(1e4, partial=0.5),
               "embedding_scale": 3.0, "logit_softcap": 8.0},
}  # fmt: skip
EAGLE = {"kind": "eagle3", "num_hidden_layers": 1, "mask_token_id": None}
# rows that a drafter's vocabulary has more (or fewer) than the target's, of which both use 5
PADDED = {
    "longer": (3, {"markov": MarkovConfig("vanilla", 4), "mask_token_id": 7}),
    "longer, borrowed head": (3, {"markov": MarkovConfig("rnn", 4), "head": "target"}),
    "longer, borrowed both": (2, {"embeddings": "target", "head": "target", "mask_token_id": 4}),
    "longer, reduced": (3, {"markov": MarkovConfig("gated", 4), "draft_vocab_size": 6}),
    "longer, eagle3": (3, EAGLE),
    "shorter": (-1, {"markov": MarkovConfig("vanilla", 4),
                     "confidence": ConfidenceConfig(True), "mask_token_id": 4}),
    "shorter, borrowed head": (-1, {"markov": MarkovConfig("vanilla", 4), "head": "target",
                                    "mask_token_id": 4}),
    "shorter, borrowed both": (-1, {"embeddings": "target", "head": "target", "mask_token_id": 4}),
    "shorter, reduced": (-1, {"draft_vocab_size": 4, "mask_token_id": 4}),
    "shorter, eagle3": (-1, EAGLE),
}  # fmt: skip


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
        kept = sorted(numbers.choice(config.vocab_size, config.draft_vocab_size, replace=False))
        drafter.draft_ids = mx.array(np.array(kept, np.int32))
    drafter.bind(target)
    return drafter


class PaddedTokenizer(ByteTokenizer):
    """Five tokens, whatever the tables have room for."""

    def get_vocab(self):
        return {chr(97 + i): i for i in range(5)}


def check(fields, name, more=0):
    """Every limit and block; returns how many drafts were accepted.

    `more` is how many rows the drafter's vocabulary has more than the target's.
    """
    accepted = 0
    for seed, vocab in ((0, 6), (3, 9)):
        target = tiny_target(seed, "qwen3", vocab)
        reference = plain(target, [1, 2, 3, 1, 5], 41)
        assert reference.margin > 5e-4, "a near-tie: choose another seed"
        drafter = drafter_of(target, seed + 20, **{"vocab_size": vocab + more} | fields)
        pair = Pair(target, drafter, PaddedTokenizer())
        most = drafter.drafts_of(7)
        for options in ({}, {"block_size": 3}, {"cutoff": "fixed:2"}, {"prefill_step_size": 2}):
            rounds = check_run(pair, reference, 40, **options)
            assert all(len(r.proposed) <= most for r in rounds), name
            assert max(t for r in rounds for t in r.proposed) < min(vocab, vocab + more)
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


@pytest.mark.parametrize("name", PADDED)
def test_vocabularies_padded_otherwise(name):
    more, fields = PADDED[name]
    assert check(fields, name, more) > 0


SAMPLED = {
    "reduced": (0, BLOCKS["reduced vocabulary"]),
    "slot 1": (0, BLOCKS["slot 1, mixed layers"]),
    "eagle3": (0, EAGLE | EAGLES["reduced vocabulary"]),
} | PADDED


@pytest.mark.parametrize("name", SAMPLED)
def test_sampling_runs_and_proposes(name):
    """The draft distribution lies over the target's vocabulary, and sums to one."""
    more, fields = SAMPLED[name]
    target = tiny_target(1, "qwen3", 9)
    drafter = drafter_of(target, 7, **{"vocab_size": 9 + more} | fields)
    pair = Pair(target, drafter, PaddedTokenizer())
    events = list(run_events(pair, (1, 2, 3), Options.of(max_tokens=30, temperature=1.0, seed=5)))
    assert sum(len(e.proposed) for e in events[1:-1]) > 0
    context = drafter.start()
    _, features = pair.tapped(mx.array([1, 2, 8]), target.new_cache())
    drafter.extend(context, features, mx.array([2, 8, 4]))

    def draw(logits):
        probs = mx.softmax(logits, axis=-1)
        return mx.argmax(logits, axis=-1), probs

    proposal = drafter.propose(context, 4, 7, drafter.drafts_of(7), draw)
    assert proposal.probs.shape == (drafter.drafts_of(7), 9)
    np.testing.assert_allclose(np.array(proposal.probs.sum(axis=-1)), 1.0, atol=1e-6)
    assert not np.array(proposal.probs)[:, 9 + min(more, 0) :].any()
    assert proposal.tokens.tolist() == mx.argmax(proposal.probs, axis=-1).tolist()


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
