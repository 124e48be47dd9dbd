"""`check`: equal answers pass, planted faults do not, and rounding is told from logic."""

import json

import mlx.core as mx
import numpy as np
import pytest

import dspark_mlx.verify
from dspark_mlx import generate
from dspark_mlx.cache import TargetCache
from dspark_mlx.measure.arms import Arm, DrafterChoice
from dspark_mlx.measure.distribution import judge, transformed
from dspark_mlx.measure.lossless import (
    TIE,
    Difference,
    explain,
    first_difference,
    plain_answer,
    speculative_answer,
    verdict,
)
from dspark_mlx.measure.observe import Counter, Recorder, row_exact, watched
from dspark_mlx.sampling import Sampling

from ..fakes import ScriptedDrafter, pair_with
from ..markov import markov_target
from ..tools import TARGET, VANILLA, run

ARGS = ["--model", TARGET, "--drafter", VANILLA, "--limit", 1]
REAL = dspark_mlx.verify.leading


def skipped_rejection(flags):
    """One more draft than the target agrees with."""
    return mx.minimum(REAL(flags) + 1, flags.shape[0])


@pytest.fixture
def arm(pair_of):
    return Arm(DrafterChoice("vanilla", "x", pair_of("dspark-vanilla")))


@pytest.fixture(scope="module")
def golden(fixtures):
    return json.loads((fixtures / "goldens" / "dspark-vanilla.json").read_text())["prompts"]


def test_equal_answers_pass(capsys, tmp_path):
    argv = ["check", *ARGS, "--max-tokens", 24, "-o", tmp_path]
    done = run(capsys, *argv, "--cutoffs", "full,threshold:0.6")
    assert done.code == 0 and "the output is the target's own" in done.out
    body = json.loads((tmp_path / "check.json").read_text())
    assert body["holds"] and [row["equal"] for row in body["arms"]] == [3, 3]
    records = (tmp_path / "answers.jsonl").read_bytes()
    assert records.count(b'"plain"') == 3  # once per prompt, shared by the cutoffs
    again = run(capsys, *argv, "--cutoffs", "full")
    assert again.code == 0 and (tmp_path / "answers.jsonl").read_bytes() == records


def test_a_skipped_rejection_fails(capsys, monkeypatch):
    monkeypatch.setattr(dspark_mlx.verify, "leading", skipped_rejection)
    done = run(capsys, "check", *ARGS, "--max-tokens", 24)
    assert done.code == 1 and "THE OUTPUT IS NOT THE TARGET'S OWN" in done.out
    assert "FAULT: the token is not the largest logit of its own verify pass" in done.out


def test_rejected_rows_left_in_the_cache_fail(capsys, monkeypatch):
    """A rollback that restores the length and leaves other rows behind."""
    real = TargetCache.keep

    def keep(cache, length):
        rejected = cache.length - length
        real(cache, length)
        if rejected:
            for entry in cache.entries:
                entry.keys[..., length - 1, :] = entry.keys[..., length, :]
                entry.values[..., length - 1, :] = entry.values[..., length, :]

    monkeypatch.setattr(TargetCache, "keep", keep)
    done = run(capsys, "check", *ARGS, "--max-tokens", 48)
    assert done.code == 1 and "FAULT: the margin is larger than rounding explains" in done.out


def test_a_skipped_rejection_fails_when_sampling(capsys, monkeypatch):
    argv = ["check", *ARGS, "--temp", 1.0, "--samples", 8]
    honest = run(capsys, *argv)
    assert honest.code == 0, honest
    monkeypatch.setattr(dspark_mlx.verify, "leading", skipped_rejection)
    assert run(capsys, *argv).code == 1


FAULTS = {
    None: lambda monkeypatch: None,
    # the classical mistake: after a rejection the target's law, not the residual
    "plain redraw": lambda m: m.setattr(dspark_mlx.verify, "residual", lambda row, rejected: row),
    "skipped rejection": lambda m: m.setattr(dspark_mlx.verify, "leading", skipped_rejection),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=4)], ids=str)
def test_the_law_of_samples_against_a_known_drafter(monkeypatch, fault, sampling):
    numbers = np.random.default_rng(6)
    table = numbers.standard_normal((8, 8)) * 0.8
    target = markov_target(table)
    rows = mx.array((table + numbers.standard_normal((8, 8)) * 1.2).astype(np.float32))
    mx.eval(rows)
    drafter = ScriptedDrafter(target, lambda position, k, previous: rows[previous], block=3)
    arm = Arm(DrafterChoice("scripted", "x", pair_with(target, drafter)))
    FAULTS[fault](monkeypatch)
    found = [u for seed in range(3)
             for u in transformed(pair_with(target), arm, [1, 2], sampling, 400, seed)]  # fmt: skip
    verdict = judge(found)
    assert verdict["numbers"] == 3 * 399
    assert verdict["passes"] == (fault is None), verdict


def test_row_exact_runs_one_row_at_a_time_and_gives_the_same(arm, golden):
    ids, plain = golden[0]["ids"], golden[0]["plain_greedy_ids"]
    counter, recorder = Counter(), Recorder()
    pair = row_exact(watched(watched(arm.pair, counter), recorder), len(ids))
    answer = generate(pair, ids, max_tokens=32, cutoff="full")
    assert answer.tokens == plain[:32]
    assert {one.logits.shape[0] for one in recorder.passes[1:]} == {1}
    assert counter.forwards == len(recorder.passes)
    assert counter.rows == len(ids) + len(answer.tokens) - 1  # no rejected row ever ran
    assert answer.stats.accept_len > 1.5
    assert speculative_answer(arm, ids, 32, exact=True) == plain[:32]


def test_row_exact_ends_at_a_stop_token(arm, golden):
    for prompt in golden:
        want = prompt["plain_greedy_ids"]
        if len(want) < 64:
            assert speculative_answer(arm, prompt["ids"], 64, exact=True) == want
            return
    pytest.fail("no golden prompt stops")


def test_plain_answers_are_mlx_lms(pair_of, golden):
    for prompt in golden[:3]:
        assert plain_answer(pair_of(False), prompt["ids"], 64) == prompt["plain_greedy_ids"]


def test_where_answers_part():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


def test_an_answer_that_ends_elsewhere_is_a_fault(arm, pair_of, golden):
    ids, plain = golden[0]["ids"], golden[0]["plain_greedy_ids"][:8]
    found = explain(pair_of(False), arm, ids, plain, plain[:5], 8)
    assert (found.verdict, found.at, found.plain, found.speculative) == (
        "ended elsewhere", 5, plain[5], None,
    )  # fmt: skip


def test_both_margins_are_of_the_passes_that_decided(arm, pair_of, golden):
    ids, plain = golden[0]["ids"], golden[0]["plain_greedy_ids"][:8]
    other = [*plain[:5], (plain[5] + 1) % 312, *plain[6:]]
    found = explain(pair_of(False), arm, ids, plain, other, 8)
    logits = pair_of(False).target.model(mx.array([[*ids, *plain[:5]]]))[0, -1]
    margin = (logits[plain[5]] - logits[other[5]]).item()
    assert found.position == len(ids) + 5
    assert found.plain_margin == pytest.approx(margin, abs=1e-4)
    assert found.speculative_margin == pytest.approx(-margin, abs=1e-4)
    assert 0 <= found.rounding < 1e-4
    assert found.verdict == "not the target's word"


@pytest.mark.parametrize(
    ("margin", "rounding", "own", "dtype", "word"),
    [
        (0.10, 0.06, True, mx.bfloat16, TIE),
        (2.00, 0.06, True, mx.bfloat16, "beyond rounding"),
        (0.10, 0.06, False, mx.bfloat16, "not the target's word"),
        (0.10, 3.00, True, mx.bfloat16, "forward differs"),
        (1e-5, 1e-5, True, mx.float32, TIE),
        (5e-6, 0.0, True, mx.float32, TIE),  # two units in the last place of 20
        (1e-3, 1e-5, True, mx.float32, "beyond rounding"),
        (1e-5, 1e-2, True, mx.float32, "forward differs"),
    ],
)
def test_verdicts(margin, rounding, own, dtype, word):
    found = Difference(3, 9, 1, 2, margin, margin, rounding, 8, 20.0)
    assert verdict(found, own, dtype) == word


def test_the_uniform_test_has_a_level_and_power():
    numbers = np.random.default_rng(5)
    assert judge(numbers.random(2000).tolist())["passes"]
    assert not judge((numbers.random(2000) ** 1.2).tolist())["passes"]
    assert not judge([*numbers.random(2000).tolist(), 2.0])["passes"]
    assert not judge(numbers.random(10).tolist())["enough"]
    p = [judge(numbers.random(200).tolist())["p_value"] for _ in range(400)]
    assert 0.4 < np.mean(p) < 0.6 and np.mean(np.array(p) < 0.1) < 0.15


@pytest.mark.parametrize(
    ("argv", "word"),
    [
        (["--row-exact", "--temp", 0.7], "--row-exact is for greedy"),
        (["--max-tokens", 1], "--max-tokens must be 2"),
        (["--samples", 3], "--samples is for sampling"),
        (["--temp", 1.0, "--samples", 0], "--samples must be 1"),
        (["--temp", 1.0, "--samples", 1, "--sets", "chat"], "too few to test"),
        (["--cutoffs", "best"], "unknown cutoff"),
    ],
)
def test_bad_input_is_one_line(capsys, argv, word):
    done = run(capsys, "check", *ARGS, *argv)
    assert done.code == 2 and done.out == "" and word in done.err.splitlines()[-1]
