"""Logits processors and opaque samplers: what mlx-lm says with them, token for token."""

import functools

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_sampler

from dspark_mlx import Finished, Round, generate, stream
from dspark_mlx.errors import OptionError
from tests.checks import Waits, chi_square
from tests.drafters import random_dspark
from tests.fakes import Plain, ScriptedDrafter, falling, pair_with, says, scripts, tiny_target
from tests.markov import markov_target, random_table

PROMPT, LENGTH = [7, 3, 9, 3, 7], 40


def even_only(tokens, logits):
    """A mask, as of a grammar: only even ids."""
    return mx.where(mx.arange(logits.shape[-1]) % 2 == 0, logits, -mx.inf)


def by_history(tokens, logits):
    """Depends on the length and on the last two tokens, read on the host."""
    a, b = tokens[-2:].tolist()
    return logits.at[:, (a + b + tokens.size) % logits.shape[-1]].add(9.0)


CASES = {
    "repetition": {"repetition_penalty": 1.7},
    "repetition, all of the history": {"repetition_penalty": 1.3, "repetition_context_size": 500},
    "presence": {"presence_penalty": 3.0, "presence_context_size": 7},
    "frequency": {"frequency_penalty": 2.5, "frequency_context_size": 60},
    "bias": {"logit_bias": {3: 6.0, 9: -50.0}},
    "all of them": {
        "logit_bias": {3: 2.0},
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.7,
    },
    "mask": {"logits_processors": [even_only]},
    "own": {"presence_penalty": 1.0, "logits_processors": [by_history, even_only]},
}


@functools.cache
def target():
    return tiny_target(0)


def made(options):
    """The processors that mlx-lm would be given."""
    own = options.get("logits_processors", [])
    names = {k: v for k, v in options.items() if k != "logits_processors"}
    return [*make_logits_processors(**names), *own]


@functools.cache
def reference(case):
    """mlx-lm's own generation, log-probabilities and all."""
    steps = generate_step(mx.array(PROMPT), target().model, max_tokens=LENGTH,
                          logits_processors=made(CASES[case]))  # fmt: skip
    ids, rows = zip(*[(t, np.array(row)) for t, row in steps], strict=True)
    second = [int(np.argsort(row)[-2]) for row in rows]
    logprobs = [float(row[t]) for t, row in zip(ids, rows, strict=True)]
    return Plain(tuple(PROMPT), list(ids), second, logprobs, 0.0)


def pairs(case):
    """Plain, a real drafter, and scripted ones from perfect to hopeless."""
    scripted = scripts(reference(case), 80)
    yield "plain", None
    yield "dspark", random_dspark(target(), 2)
    for name in ("oracle", "first 2 right", "random or right", "wrong"):
        yield name, ScriptedDrafter(target(), scripted[name], confidence=falling)


@pytest.mark.parametrize("case", CASES)
def test_greedy_equals_mlx_lm(case):
    """At every verified position, on the true history (P30)."""
    want = reference(case)
    for name, drafter in pairs(case):
        for cutoff in ("full", "threshold:0.7") if name == "oracle" else ("full",):
            answer = generate(pair_with(target(), drafter), PROMPT, max_tokens=LENGTH,
                              logprobs=True, cutoff=cutoff, **CASES[case])  # fmt: skip
            assert answer.tokens == want.tokens, (case, name)
            np.testing.assert_allclose(answer.logprobs, want.logprobs, atol=1e-4)


@pytest.mark.parametrize("case", ["frequency", "mask"])
def test_drafts_are_processed_too(case):
    """A drafter that knows the raw target is brought to the processed one, where it can be."""
    raw = scripts_of_raw_logits()
    drafter = ScriptedDrafter(target(), raw)
    events = list(stream(pair_with(target(), drafter), PROMPT, max_tokens=LENGTH, **CASES[case]))
    rounds = [e for e in events if isinstance(e, Round)]
    assert [t for r in rounds for t in r.tokens] == reference(case).tokens[1:]
    if case == "mask":
        assert all(t % 2 == 0 for r in rounds for t in r.proposed)


def scripts_of_raw_logits():
    rows = {}

    def script(position, k, previous):
        if position not in rows:
            rows[position] = mx.random.normal((1, 80), key=mx.random.key(position))
        return rows[position]

    return script


def test_processing_drafts_pays():
    """With an oracle for the unprocessed target, processed drafts are accepted: by the mask."""
    table = random_table(3, 12)
    scripted_target = markov_target(np.broadcast_to(table[0], table.shape))  # by the last token
    rows = mx.array(table[0])
    drafter = ScriptedDrafter(scripted_target, lambda p, k, previous: rows[previous])
    pair = pair_with(scripted_target, drafter)
    answer = generate(pair, [1, 2], max_tokens=LENGTH, logits_processors=[even_only],
                      presence_penalty=0.5)  # fmt: skip
    assert answer.stats.acceptance == [1.0] * 7
    assert all(token % 2 == 0 for token in answer.tokens)


def test_still_one_wait_per_round(monkeypatch):
    """Processors of mlx operations never visit the host."""
    want = reference("all of them")
    drafter = ScriptedDrafter(target(), scripts(want, 80)["first 2 right"])
    pair = pair_with(target(), drafter)
    events = stream(pair, PROMPT, max_tokens=LENGTH, **CASES["all of them"])
    next(events)
    waits = Waits(monkeypatch)
    rounds = [e for e in events if isinstance(e, Round)]
    assert waits.evals == len(rounds) and waits.strays == []


def test_reduced_vocabulary():
    """A draft head of few rows: processors see the target's token ids."""
    from tests.unit.test_lossless_kinds import BLOCKS, drafter_of

    small = tiny_target(1, "qwen3", 9)
    drafter = drafter_of(small, 7, **BLOCKS["reduced vocabulary"])
    options = {"logit_bias": {4: 3.0}, "repetition_penalty": 1.4, "max_tokens": 24}
    plain = generate(pair_with(small), [1, 2, 3], **options)
    ours = generate(pair_with(small, drafter), [1, 2, 3], **options)
    assert ours.tokens == plain.tokens and ours.stats.proposed > 0
    for event in stream(pair_with(small, drafter), [1, 2, 3], logit_bias={4: 99.0}, max_tokens=9):
        if isinstance(event, Round) and 4 in drafter.draft_ids.tolist():
            assert set(event.proposed) <= {4}


def test_wrong_processors_are_named():
    pair = pair_with(target())

    def drops(tokens, logits):
        return logits[0]

    with pytest.raises(OptionError, match=r"drops returned \(80,\), expected \(1, 80\)"):
        generate(pair, PROMPT, logits_processors=[drops])
    with pytest.raises(OptionError, match="must be functions"):
        generate(pair, PROMPT, logits_processors=["even"])
    with pytest.raises(OptionError, match="token 80, expected 0 to 79"):
        generate(pair, PROMPT, logit_bias={80: 1.0})
    with pytest.raises(OptionError, match="presence_penalty must be"):
        generate(pair, PROMPT, presence_penalty="much")
    with pytest.raises(OptionError, match="repetition_context_size must be"):
        generate(pair, PROMPT, repetition_penalty=1.1, repetition_context_size=0)


def test_sampler_keeps_its_own_distribution():
    """An opaque sampler by match acceptance: its law, and the stats say so (P25)."""
    vocab, draws = 6, 600
    table = random_table(5, vocab, 1.0)
    scripted_target = markov_target(table)
    drafter = ScriptedDrafter(scripted_target, says(lambda p, k: p + k, vocab), block=2)
    pair = pair_with(scripted_target, drafter)
    counts, kept = np.zeros((2, vocab)), 0
    mx.random.seed(11)
    for _ in range(draws):
        answer = generate(pair, [1, 2], max_tokens=3, sampler=make_sampler(0.8), cutoff="full")
        counts[0, answer.tokens[0]] += 1
        if answer.tokens[0] == 3:
            counts[1, answer.tokens[1]] += 1
        kept += answer.stats.accepted
    assert answer.stats.rule == "match" and kept > draws / 10
    laws = np.exp(np.stack([table[1, 2], table[2, 3]]) / 0.8)
    assert chi_square(counts, laws / laws.sum(-1, keepdims=True)) > 1e-3


def test_greedy_sampler_equals_greedy():
    want = reference("mask")
    for name, drafter in pairs("mask"):
        events = list(stream(pair_with(target(), drafter), PROMPT, max_tokens=LENGTH,
                             sampler=make_sampler(0.0), **CASES["mask"]))  # fmt: skip
        tokens = [events[0].token, *(t for e in events[1:-1] for t in e.tokens)]
        assert tokens == want.tokens, name
        assert isinstance(events[-1], Finished) and events[-1].rule == "match"


@pytest.mark.parametrize("option", [{"temperature": 0.5}, {"top_p": 0.9}, {"top_k": 3},
                                    {"min_p": 0.1}, {"seed": 1}])  # fmt: skip
def test_sampler_beside_what_it_would_ignore(option):
    with pytest.raises(OptionError, match=f"leave out {next(iter(option))}"):
        generate(pair_with(target()), PROMPT, sampler=make_sampler(0.5), **option)
    with pytest.raises(OptionError, match="sampler must be a function"):
        generate(pair_with(target()), PROMPT, sampler=0.5)
