"""Verification, threshold and metric vectors computed by the reference's own functions."""

import json

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx import Round, Stats
from dspark_mlx.cutoff import parse_cutoff
from dspark_mlx.heads.confidence import to_probability
from dspark_mlx.sampling import Sampling
from dspark_mlx.verify import residual, verify_greedy, verify_sampled


@pytest.fixture(scope="module")
def vectors(fixtures):
    return json.loads((fixtures / "vectors" / "sampling.json").read_text())


def test_verify(vectors):
    assert len(vectors["verify"]) == 23
    for case in vectors["verify"]:
        drawn_from = []

        def draw(row, case=case, seen=drawn_from):
            seen.append(np.array(row[0], dtype=np.float64))
            index = np.searchsorted(np.cumsum(seen[0]) / seen[0].sum(), case["u_next"], "right")
            return mx.array([int(index)])

        sampling = Sampling(case["temperature"])
        drafts = mx.array(case["draft_tokens"], mx.int32)
        target = mx.array(case["target_logits"])
        if sampling.greedy:
            verdict = verify_greedy(drafts, target)
        else:
            p = sampling.probabilities(target)
            np.testing.assert_allclose(np.array(p), case["target_probs"], atol=1e-5)
            q = sampling.probabilities(mx.array(case["draft_logits"])) if drafts.size else None
            verdict = verify_sampled(drafts, q, p, mx.array(case["uniforms"]), draw)
        mask = case["accept_prefix_mask"]
        leading = next((i for i, ok in enumerate(mask) if not ok), len(mask))
        assert verdict.accepted.item() == leading, case["name"]
        if case["terminated_by_stop_token"]:
            continue
        assert verdict.final.tolist() == [case["next_token_inverse_cdf"]], case["name"]
        if drawn_from:
            np.testing.assert_allclose(drawn_from[0], case["next_token_distribution"], atol=1e-5)


def test_residual(vectors):
    for case in vectors["residual"]:
        ours = residual(mx.array(case["target_probs"]), mx.array(case["draft_probs"]))
        np.testing.assert_allclose(np.array(ours), case["next_token_distribution"], atol=1e-5)


def test_threshold_rule(vectors):
    for case in vectors["prefix_length"]:
        policy = parse_cutoff(f"threshold:{case['threshold']}")
        confidence = [to_probability(z) for z in case["confidence_logits"]]
        assert policy.cut(confidence) == case["length"]


@pytest.mark.parametrize(("tau", "length"), [(0.5, 2), (0.95, 0), (0, 4)])
def test_threshold_checklist(tau, length):
    assert parse_cutoff(f"threshold:{tau}").cut((0.9, 0.5, 0.4, 0.8)) == length


def a_round(record):
    return Round(
        index=1, anchor=0, anchor_position=0, proposed=(), confidence=None,
        verified=record["proposal_len"], accepted=record["accepted"],
        proposal_len=record["proposal_len"], final=None, origin=None,
        tokens=(0,) * record["accept_len"], texts=(), logprobs=None, seconds=0.0,
    )  # fmt: skip


def test_metrics(fixtures):
    for case in json.loads((fixtures / "vectors" / "metrics.json").read_text()):
        stats = Stats()
        for record in (r for response in case["responses"] for r in response):
            stats.add(a_round(record))
        assert stats.rounds == case["summary"]["proposal_count"]
        assert stats.committed == case["summary"]["acceptance_length_sum"]
        assert stats.proposal_len == case["summary"]["proposal_length_sum"]
        row = case["row"]
        padding = [None] * (case["max_proposal_tokens"] - len(stats.acceptance))
        assert stats.acceptance + padding == pytest.approx(row["accept_rates_by_position"])
        if stats.rounds:
            assert stats.accept_len == pytest.approx(row["acceptance_length"])
            assert stats.verify_rate == pytest.approx(row["verify_rate"])
