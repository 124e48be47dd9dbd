"""Whole decodes, round by round, against the records of the reference decode loop."""

import json
import math

import mlx.core as mx
import pytest

from dspark_mlx import Round, Stats, generate, stream
from dspark_mlx.options import Options
from dspark_mlx.run import run_events

from .test_forward import DRAFTERS as BLOCK_DRAFTERS

DRAFTERS = {**BLOCK_DRAFTERS, "eagle3": "eagle3"}


def golden_runs(fixtures, drafter):
    golden = json.loads((fixtures / "goldens" / f"{DRAFTERS[drafter]}.json").read_text())
    # other packagings of a drafter hold the same tensors (see test_tensors): a part is enough
    part = slice(None) if DRAFTERS[drafter] == drafter else slice(0, None, 4)
    for run in golden["runs"][part]:
        yield golden["prompts"][run["prompt"]], run


def limit_bites(record, prompt, limit):
    """Whether the reference verified drafts that we must not verify near the limit."""
    emitted = record["anchor_position"] - len(prompt["ids"]) + 1
    return record["verified_len"] > limit - emitted - 1


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_recorded_rounds(pair_of, fixtures, drafter):
    pair, compared = pair_of(drafter), 0
    for prompt, run in golden_runs(fixtures, drafter):
        cutoff = "full" if run["threshold"] is None else f"threshold:{run['threshold']}"
        limit = run["max_new_tokens"]
        events = list(stream(pair, prompt["ids"], max_tokens=limit, cutoff=cutoff))
        rounds = [e for e in events if isinstance(e, Round)]
        ids = [events[0].token] + [t for r in rounds for t in r.tokens]
        assert ids == run["output_ids"], (prompt["name"], run["threshold"], limit)
        for ours, record in zip(rounds, run["rounds"], strict=False):
            if limit_bites(record, prompt, limit):
                break
            check_round(ours, record)
            compared += 1
    assert compared > 50


def check_round(ours, record):
    count = len(ours.proposed)
    assert list(ours.proposed) == record["proposed_tokens"][:count]
    assert ours.anchor == record["anchor_token"]
    assert ours.anchor_position == record["anchor_position"]
    assert ours.verified == record["verified_len"]
    assert ours.accepted == record["accepted"]
    assert ours.accept_len == record["accept_len"]
    assert ours.proposal_len == record["proposal_len"]
    if not record["terminated_by_stop_token"]:
        assert ours.final == record["next_token"]
    for mine, logit in zip(ours.confidence or (), record.get("confidence_logits") or (),
                           strict=False):  # fmt: skip
        assert mine == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-4)


@pytest.mark.parametrize("drafter", ["dspark-vanilla", "dspark-noconf"])
def test_pooled_acceptance(pair_of, fixtures, drafter):
    """DeepSpec counts rounds beyond the limit; up to there the pooled figures must agree."""
    stats, want = Stats(), Stats()
    for prompt, run in golden_runs(fixtures, drafter):
        if run["max_new_tokens"] != 64 or run["threshold"] not in (0.0, None):
            continue
        events = list(stream(pair_of(drafter), prompt["ids"], max_tokens=64, cutoff="full"))
        rounds = [e for e in events if isinstance(e, Round)]
        for ours, record in zip(rounds, run["rounds"], strict=False):
            if limit_bites(record, prompt, 64):
                break
            stats.add(ours)
            want.committed += record["accept_len"]
            want.proposal_len += record["proposal_len"]
            want.rounds += 1
    assert stats.accept_len == want.accept_len > 3
    assert stats.verify_rate == want.verify_rate


class RecordedDraws:
    """The reference's draws: the first index whose float64 cumulative mass exceeds u."""

    def __init__(self, run):
        self.numbers = []
        for record in run["rounds"]:
            if "prefill_uniform" in record:
                self.numbers.append(record["prefill_uniform"])
            # the reference's Eagle3 stops drafting at a stop token, ours cannot know it yet:
            # what it drafts behind it is never accepted (no ratio is above u = 1)
            behind = 7 - len(record["draft_uniforms"])
            self.numbers += record["draft_uniforms"] + [0.0] * behind
            self.numbers += record["accept_uniforms"] + [1.0] * behind
            self.numbers.append(record["next_uniform"])

    def token(self, probabilities):
        mass, total = 0.0, sum(row := probabilities.reshape(-1).tolist())
        u = self.numbers.pop(0)
        for index, p in enumerate(row):
            mass += p
            if mass / total > u:
                return mx.array([index])
        raise AssertionError("u beyond the mass")

    def uniforms(self, count):
        taken, self.numbers = self.numbers[:count], self.numbers[count:]
        return mx.array(taken, mx.float32)


@pytest.mark.parametrize("drafter", ["dspark-vanilla", "dspark-rnn", "dflash-deepspec", "eagle3"])
def test_recorded_sampled_decodes(pair_of, fixtures, drafter):
    golden = json.loads((fixtures / "goldens" / f"{drafter}.sampled.json").read_text())
    compared = 0
    for run in golden["runs"]:
        options = Options(
            # far more than recorded: the reference shortens no block near its limit
            max_tokens=run["max_new_tokens"] + 20,
            temperature=run["temperature"],
            cutoff=f"threshold:{run['threshold'] or 0}",
        )
        draws = RecordedDraws(run)
        events = run_events(pair_of(drafter), run["prompt_ids"], options, draws)
        prefilled = next(events)
        tokens, lengths = [prefilled.token], []
        for record in run["rounds"]:
            event = next(events)
            assert list(event.proposed) == record["draft_tokens"]
            assert (event.verified, event.accepted) == (record["verified_len"], record["accepted"])
            assert event.proposal_len == record["proposal_len"]
            tokens += event.tokens
            lengths.append(event.accept_len)
            compared += 1
        assert lengths == run["acceptance_lengths"]
        assert tokens[: len(run["output_ids"])] == run["output_ids"]
    assert compared > 50


def test_plain_decoding_equals_the_reference(pair_of, fixtures):
    golden = json.loads((fixtures / "goldens" / "dspark-vanilla.json").read_text())
    for prompt in golden["prompts"]:
        answer = generate(pair_of(False), prompt["ids"], max_tokens=64)
        assert answer.tokens == prompt["plain_greedy_ids"]
        assert set(prompt["plain_greedy_text"]) >= set(answer.text)
