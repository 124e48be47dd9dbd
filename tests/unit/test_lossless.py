"""Greedy speculative decoding equals mlx-lm's plain greedy decoding, token for token."""

import functools
import random

import pytest

from tests.checks import check_run
from tests.drafters import DSPARK_FORMS, random_dspark
from tests.fakes import ScriptedDrafter, falling, pair_with, plain, scripts, sure, tiny_target
from tests.markov import markov_target, random_table

LENGTH = 26
SCRIPTS = ["oracle", "wrong", *(f"first {k} right" for k in range(8)), "random",
           "random or right", "second choice"]  # fmt: skip
STATELESS = ["full", "fixed:0", "fixed:1", "fixed:3", "fixed:99",
             "threshold:0", "threshold:0.65", "threshold:1"]  # fmt: skip
CUTOFFS = [*STATELESS, "auto", "auto", "paper", "hindsight"]


@functools.cache
def recorded(form, seed, vocab=80):
    """A target, and its plain continuation of a prompt of 1 to 9 tokens."""
    target = tiny_target(seed, form, vocab)
    numbers = random.Random(seed)
    prompt = [numbers.randrange(vocab) for _ in range(1 + 4 * seed % 9)]
    reference = plain(target, prompt, LENGTH + 1)
    assert reference.margin > 5e-4, "a near-tie: choose another seed"
    return target, reference


def scripted(target, reference, script, **more):
    return ScriptedDrafter(target, scripts(reference, target.vocab_size)[script], **more)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("form", ["qwen3", "llama"])
def test_any_script(form, seed):
    """Every script, at a random block, cutoff, confidence, chunk size and limit."""
    target, reference = recorded(form, seed)
    for script in SCRIPTS:
        numbers = random.Random(f"{form} {seed} {script}")
        for _ in range(2 if script in ("oracle", "random or right") else 1):
            block, cutoff = numbers.randint(1, 8), numbers.choice(CUTOFFS)
            drafter = scripted(target, reference, script, block=block,
                               confidence=numbers.choice([falling, sure(0.7)]))  # fmt: skip
            options = {
                "cutoff": cutoff,
                "block_size": numbers.choice([None, numbers.randint(1, block)]),
                "prefill_step_size": numbers.choice([1, 3, 2048]),
            }
            limit = numbers.randint(1, LENGTH)
            print(f"{form=} {seed=} {script=} {block=} {limit=} {options=}")
            check_run(pair_with(target, drafter), reference, limit, **options)


@pytest.mark.parametrize("block", range(1, 9))
def test_blocks_and_cutoffs(block):
    target, reference = recorded("qwen3", 0)
    for script, cutoff in [("oracle", c) for c in STATELESS] + [
        (f"first {k} right", "full") for k in range(block)
    ]:
        drafter = scripted(target, reference, script, block=block, confidence=falling)
        rounds = check_run(pair_with(target, drafter), reference, 16, cutoff=cutoff)
        right = int(script.split()[1]) if script != "oracle" else block
        kept = {"fixed:0": 0, "fixed:1": 1, "fixed:3": 3, "threshold:0.65": 3,
                "threshold:1": 0}.get(cutoff, block)  # fmt: skip
        left = 15
        for event in rounds:
            assert event.verified == min(kept, block, left - 1)
            assert event.accepted == min(event.verified, right)
            left -= len(event.tokens)


@pytest.mark.parametrize("script", ["oracle", "first 2 right", "random or right"])
def test_every_limit(script):
    target, reference = recorded("llama", 0)
    drafter = scripted(target, reference, script, block=5)
    for limit in range(1, 20):
        rounds = check_run(pair_with(target, drafter), reference, limit)
        emitted = 1
        for event in rounds:
            assert len(event.proposed) == min(5, limit - emitted - 1)
            emitted += len(event.tokens)


@pytest.mark.parametrize("form", range(len(DSPARK_FORMS)))
def test_real_drafter(form):
    """A DSpark drafter of random weights; a small vocabulary lets it guess right at times."""
    accepted = 0
    for seed, block in ((0, 7), (3, 3)):
        target, reference = recorded("qwen3", seed, vocab=4)
        settings = DSPARK_FORMS[form]
        drafter = random_dspark(target, seed + 10, block=block, **settings)
        pair = pair_with(target, drafter)
        for cutoff, slots in (("full", None), ("fixed:2", block - 1)):
            rounds = check_run(pair, reference, LENGTH, cutoff=cutoff, block_size=slots)
            accepted += sum(r.accepted for r in rounds)
            for r in rounds:
                expected = len(r.proposed) if drafter.config.confidence else 0
                assert len(r.confidence or ()) == expected
        if drafter.config.confidence:
            rounds = check_run(pair, reference, LENGTH, cutoff="threshold:0.5")
            for r in rounds:
                low = [k for k, c in enumerate(r.confidence or ()) if c < 0.5]
                assert r.verified == (low[0] if low else len(r.proposed))
    assert accepted > 0


def test_block_size_counts_drafts():
    """A shorter block is another block, and a shorter limit is the same block cut (P50)."""
    target, reference = recorded("qwen3", 1)
    pair = pair_with(target, random_dspark(target, 5, block=7))
    full = check_run(pair, reference, 25)[0].proposed
    assert len(full) == 7
    for count in range(1, 7):
        assert check_run(pair, reference, 25, cutoff=f"fixed:{count}")[0].proposed == full[:count]
        assert len(check_run(pair, reference, 25, block_size=count)[0].proposed) == count


@pytest.mark.parametrize("script", ["wrong", "second choice", "random", "first 3 right", "oracle"])
def test_long_run(script):
    """500 tokens, across several enlargements of the cache; acceptance does not decay (P11)."""
    target = markov_target(random_table(0, 12))
    reference = plain(target, [1, 2, 3], 500)
    rounds = check_run(pair_with(target, scripted(target, reference, script)), reference, 500)
    early, late = (sum(r.accepted for r in part) for part in (rounds[1:11], rounds[-12:-2]))
    if script in ("oracle", "first 3 right", "wrong"):
        assert early == late


def test_long_run_of_real_models():
    target = tiny_target(3, vocab=12)
    reference = plain(target, [1, 2, 3], 265)
    assert reference.margin > 5e-4
    check_run(pair_with(target, scripted(target, reference, "first 3 right")), reference, 265)
    check_run(pair_with(target, random_dspark(target, 1, block=4)), reference, 265)


@pytest.mark.parametrize("window", [4, 5, 8])
def test_sliding_window(window):
    """A window that wraps, shorter and longer than a block, beside full attention."""
    layers = ["sliding_attention", "full_attention"]
    target = tiny_target(1, "llama", 20, layer_types=layers, sliding_window=window)
    reference = plain(target, [3, 1, 4, 1, 5], 40)
    assert reference.margin > 5e-4
    for script, block in (
        ("oracle", 3),
        ("wrong", 7),
        ("first 3 right", 7),
        ("random or right", 5),
    ):
        drafter = scripted(target, reference, script, block=block)
        check_run(pair_with(target, drafter), reference, 40, prefill_step_size=3)


def test_without_a_drafter():
    target, reference = recorded("qwen3", 2)
    rounds = check_run(pair_with(target), reference, LENGTH)
    assert {r.origin for r in rounds} == {"plain"}
    assert {(r.proposed, r.confidence, r.verified) for r in rounds} == {((), None, 0)}
