"""Seeds, threads and the distribution a draw follows."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import mlx_lm.sample_utils
import numpy as np
import pytest

from dspark_mlx import Finished, generate, load, stream, stream_generate
from dspark_mlx.sampling import KeyedDraws, Sampling
from tests.checks import chi_square
from tests.drafters import random_dspark
from tests.fakes import pair_with, tiny_target

PROMPT = [7, 3, 9]
SAMPLED = {"max_tokens": 24, "temperature": 2.0}


@pytest.fixture(scope="module")
def pair():
    target = tiny_target(0, vocab=12)
    return pair_with(target, random_dspark(target, 2))


def test_seeds(pair):
    """42 twice is the same, 43 another, none at all another every time (P28)."""
    first, second = (generate(pair, PROMPT, seed=42, **SAMPLED) for _ in range(2))
    assert first.tokens == second.tokens
    assert first.stats.seed == 42
    assert 0 < first.stats.accepted == second.stats.accepted < first.stats.verified
    others = [generate(pair, PROMPT, seed=s, **SAMPLED) for s in (43, 0, (1 << 64) - 1, None, None)]
    distinct = {tuple(a.tokens) for a in [first, *others]}
    assert len(distinct) == 6
    drawn = generate(pair, PROMPT, cutoff="full", **SAMPLED)
    again = generate(pair, PROMPT, cutoff="full", seed=drawn.stats.seed, **SAMPLED)
    assert again.tokens == drawn.tokens, "the default follows the clock, so it would not repeat"


def test_global_random_state_is_left_alone(pair):
    """Neither read nor written."""
    results = []
    for state in (1, 2):
        mx.random.seed(state)
        results.append(generate(pair, PROMPT, seed=42, top_p=0.9, **SAMPLED).tokens)
        left = mx.random.uniform(shape=(3,)).tolist()
        mx.random.seed(state)
        assert mx.random.uniform(shape=(3,)).tolist() == left
    assert results[0] == results[1]


def test_interleaved_seeded_runs(pair):
    alone = [generate(pair, PROMPT, seed=s, **SAMPLED).tokens for s in (1, 2)]
    runs = [stream_generate(pair, PROMPT, seed=s, **SAMPLED) for s in (1, 2)]
    together = [[], []]
    for step in itertools.cycle((1, 4, 2)):
        for run, tokens in zip(runs, together, strict=True):
            tokens += [r.token for r in itertools.islice(run, step)]
        if len(together[0]) == len(together[1]) == 24:
            break
    assert together == alone


KINDS = [
    {"max_tokens": 12},
    {"max_tokens": 12, "cutoff": "threshold:0.5", "logprobs": True},
    SAMPLED | {"max_tokens": 12, "seed": 42},
    SAMPLED | {"max_tokens": 12, "seed": 42, "top_p": 0.9, "top_k": 4, "min_p": 0.1},
    SAMPLED | {"max_tokens": 12, "seed": 42, "cutoff": "threshold:0.5", "prefill_step_size": 1},
]


def let_go():
    """What a thread that used MLX does last; without it the process may abort at its exit."""
    mx.synchronize()
    mx.clear_streams()


def test_threads(pair):
    """Built on the main thread, run in others, one after another (P77)."""
    want = [generate(pair, PROMPT, **kind).tokens for kind in KINDS]
    found = []

    def work():
        found.extend(generate(pair, PROMPT, **kind).tokens for kind in KINDS)
        let_go()

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == want * 2
    with ThreadPoolExecutor(max_workers=1) as pool:
        jobs = [pool.submit(generate, pair, PROMPT, **kind) for kind in KINDS]
        assert [job.result().tokens for job in jobs] == want
        pool.submit(let_go).result()
    assert [generate(pair, PROMPT, **kind).tokens for kind in KINDS] == want


@pytest.mark.parametrize("drafter", ["dspark-vanilla", "dspark-conf-nomarkov"])
def test_loaded_pair_in_a_thread(fixtures, drafter):
    loaded = load(fixtures / "target-qwen3", fixtures / drafter)
    found = []

    def work():
        found.append(generate(loaded, "The", max_tokens=12).tokens)
        let_go()

    thread = threading.Thread(target=work)  # the first to run the pair at all
    thread.start()
    thread.join()
    assert found == [generate(loaded, "The", max_tokens=12).tokens]


class Intruder:
    """A layer that lets another thread run a whole generation in the middle of a forward."""

    def __init__(self, layer):
        self.layer, self.job = layer, None

    def __call__(self, *args, **kwargs):
        job, self.job = self.job, None
        if job is not None:
            thread = threading.Thread(target=job)
            thread.start()
            thread.join()
        return self.layer(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.layer, name)


def test_two_threads_at_once():
    """A pair holds no state of a generation: two threads may be inside a forward of it."""
    target = tiny_target(0, vocab=12)
    target.model.model.layers[1] = intruder = Intruder(target.model.model.layers[1])
    pair = pair_with(target, random_dspark(target, 2))
    want, found = generate(pair, PROMPT, max_tokens=12, cutoff="full"), []

    def work():
        found.append(generate(pair, PROMPT, max_tokens=12, cutoff="full"))
        let_go()

    intruder.job = work
    ours = generate(pair, PROMPT, max_tokens=12, cutoff="full")
    for answer in (ours, *found):
        assert answer.tokens == want.tokens
        assert answer.stats.accepted == want.stats.accepted
    assert len(found) == 1


def test_keyed_tokens_follow_their_distribution():
    """Along one run, and over the first draws of many seeds; neighbours are independent."""
    law = mx.array([0.5, 0.25, 0.15, 0.07, 0.03, 0.0])
    draws = KeyedDraws(9)
    along = np.array(mx.concatenate([draws.token(law) for _ in range(4000)]))
    across = np.array(mx.concatenate([KeyedDraws(s).token(law) for s in range(4000)]))
    for tokens in (along, across):
        assert chi_square(np.bincount(tokens, minlength=6), law) > 1e-3
        pairs = np.bincount(6 * tokens[:-1] + tokens[1:], minlength=36)
        assert chi_square(pairs, np.outer(law, law).ravel()) > 1e-3


def test_draws_of_neighbouring_seeds_never_meet():
    """Draw n + 1 of one seed is not draw n of the next, nor any other of any other."""
    numbers = [KeyedDraws(seed) for seed in (*range(40), (1 << 64) - 2, (1 << 64) - 1)]
    values = mx.concatenate([draws.uniforms(1) for draws in numbers for _ in range(5)]).tolist()
    assert len(set(values)) == len(values)


def test_keyed_uniforms_are_uniform_and_independent_of_tokens():
    law = mx.array([[0.5, 0.5]])
    draws, rows = KeyedDraws(3), []
    for _ in range(2000):
        token = draws.token(law)
        rows.append(mx.concatenate([token.astype(mx.float32), draws.uniforms(2)]))
    token, first, second = np.array(mx.stack(rows)).T
    assert 0 <= min(first.min(), second.min()) <= max(first.max(), second.max()) < 1
    bins = (token.astype(int) * 5 + (first * 5).astype(int)) * 5 + (second * 5).astype(int)
    assert chi_square(np.bincount(bins, minlength=50), np.full(50, 0.02)) > 1e-3
    block = np.array(KeyedDraws(4).uniforms(5000))
    assert chi_square(np.bincount((block * 40).astype(int), minlength=40), np.full(40, 1.0)) > 1e-3


FILTERS = [
    Sampling(0.7), Sampling(1.5, top_p=0.9), Sampling(1.0, top_k=4), Sampling(0.5, min_p=0.1),
    Sampling(1.3, 0.9, 4, 0.1), Sampling(1.0, 0.9, 400, 0.0), Sampling(2.0, 0.0, 0, 0.1),
]  # fmt: skip


def independent(logits, sampling):
    """The distribution by mlx-lm's order, in float64 and without MLX."""
    x = np.asarray(logits, np.float64)
    x = x - np.log(np.exp(x - x.max()).sum()) - x.max()
    keep = np.ones(len(x), bool)
    order = np.argsort(-x)
    if 0 < sampling.top_p < 1:
        above = np.concatenate([[0], np.cumsum(np.exp(x[order]))[:-1]])
        keep[order[above >= sampling.top_p]] = False
    if sampling.min_p > 0:
        keep &= x >= x.max() + np.log(sampling.min_p)
    if 0 < sampling.top_k < len(x):
        keep[order[sampling.top_k :]] = False
    weights = np.where(keep, np.exp((x - x.max()) / sampling.temperature), 0)
    return weights / weights.sum()


@pytest.mark.parametrize("sampling", FILTERS, ids=str)
def test_probabilities(sampling, monkeypatch):
    """As an independent implementation has them, and as mlx-lm's own sampler draws."""
    rows = np.random.default_rng(2).standard_normal((40, 24)).astype(np.float32) * 2 + 7
    ours = np.array(sampling.probabilities(mx.array(rows)))
    np.testing.assert_allclose(ours, [independent(r, sampling) for r in rows], atol=2e-6)
    assert ((ours == 0) == (np.array([independent(r, sampling) for r in rows]) == 0)).all()
    seen = []
    monkeypatch.setattr(
        mlx_lm.sample_utils,
        "categorical_sampling",
        lambda logprobs, temp: seen.append(mx.softmax(logprobs / temp, axis=-1)),
    )
    sampler = mlx_lm.sample_utils.make_sampler(
        sampling.temperature, sampling.top_p, sampling.min_p,
        top_k=sampling.top_k if sampling.top_k < 24 else 0,
    )  # fmt: skip
    logits = mx.array(rows)
    sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    np.testing.assert_allclose(ours, np.array(seen[0]), atol=1e-6)


def test_probabilities_of_one_row_are_those_of_many():
    """The drafter's [1, V] rows and the target's [l+1, V] go through the same numbers."""
    sampling = Sampling(0.7, 0.9, 4, 0.1)
    rows = mx.array(np.random.default_rng(2).standard_normal((5, 24)).astype(np.float32))
    single = mx.concatenate([sampling.probabilities(rows[k : k + 1]) for k in range(5)])
    assert mx.allclose(sampling.probabilities(rows), single, atol=1e-7)
    half = sampling.probabilities(rows.astype(mx.bfloat16))
    assert half.dtype == mx.float32


def test_finished_tells_the_seed(pair):
    last = list(stream(pair, PROMPT, max_tokens=3, temperature=1.0))[-1]
    assert isinstance(last, Finished)
    assert 0 <= last.seed < 1 << 63
