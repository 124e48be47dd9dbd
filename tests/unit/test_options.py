"""Bad options are refused by name, at the call; odd but valid ones mean what they say."""

import math

import pytest

from dspark_mlx import generate, stream, stream_generate
from dspark_mlx.cutoff import Plan, parse_cutoff
from dspark_mlx.cutoff.base import Constant
from dspark_mlx.errors import OptionError, PairError, UserError
from dspark_mlx.options import Options
from dspark_mlx.sampling import Sampling
from tests.fakes import ScriptedDrafter, pair_with, plain, scripts, sure
from tests.markov import markov_target, random_table

BAD = [
    ("max_tokens", -2), ("max_tokens", True), ("max_tokens", 1.5), ("max_tokens", "5"),
    ("block_size", 0), ("block_size", -1), ("block_size", False), ("block_size", 2.0),
    ("prefill_step_size", 0), ("prefill_step_size", None), ("prefill_step_size", 1.0),
    ("temperature", -1), ("temperature", math.nan), ("temperature", math.inf),
    ("temperature", "warm"), ("temperature", True), ("temperature", -1e-9),
    ("top_p", -0.1), ("top_p", 1.1), ("top_p", math.nan), ("top_p", None),
    ("min_p", -0.1), ("min_p", 1.5), ("min_p", math.nan),
    ("top_k", -1), ("top_k", 1.0), ("top_k", True), ("top_k", None),
    ("seed", -1), ("seed", 1 << 64), ("seed", 1.0), ("seed", True),
    ("logprobs", "yes"),
    ("cutoff", "half"), ("cutoff", "fixed"), ("cutoff", "fixed:-1"), ("cutoff", "fixed:x"),
    ("cutoff", "full:1"), ("cutoff", "threshold:2"), ("cutoff", "threshold:nan"),
    ("cutoff", "threshold:"), ("cutoff", ""), ("cutoff", None), ("cutoff", 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    target = markov_target(random_table(0, 12))
    script = scripts(plain(target, [1, 2, 3], 30), 12)["oracle"]
    return pair_with(target, ScriptedDrafter(target, script, block=5))


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_value(pair, name, value):
    """One line that names the option and the value, from every entry point, at the call."""
    for call in (stream, stream_generate, generate):
        with pytest.raises(OptionError) as caught:
            call(pair, [1, 2, 3], **{name: value})
        message = str(caught.value)
        assert name in message and "\n" not in message
        assert isinstance(caught.value, UserError) and isinstance(caught.value, ValueError)


def test_unknown_option(pair):
    for call in (stream, stream_generate, generate):
        with pytest.raises(TypeError, match=r"max_token\b.*known: max_tokens"):
            call(pair, [1, 2, 3], max_token=3)


@pytest.mark.parametrize(
    "prompt", [[], [12], [-1], [1, True], [1.0], [None], ["a"], [1 << 40], [[1]]]
)
def test_bad_prompt(pair, prompt):
    with pytest.raises(OptionError, match="prompt"):
        generate(pair, prompt)


@pytest.mark.parametrize("given", [{}, {"prompt": [1], "messages": [{"role": "user"}]}])
def test_prompt_or_messages(pair, given):
    with pytest.raises(OptionError, match="either a prompt or messages"):
        generate(pair, **given)


@pytest.mark.parametrize("messages", [[], ["hi"], [{"role": "user"}],
                                      [{"role": "user", "content": "hi"}]])  # fmt: skip
def test_messages_without_a_template(pair, messages):
    with pytest.raises(OptionError):
        generate(pair, messages=messages)


def test_block_beyond_the_drafter(pair):
    """Refused, not clamped in silence (P50)."""
    with pytest.raises(OptionError, match=r"block_size 6 .* 5 slots"):
        generate(pair, [1, 2, 3], block_size=6)
    assert generate(pair, [1, 2, 3], block_size=5, max_tokens=4).stats.proposed == 2


def test_options_about_the_pair_are_refused_at_the_call(pair):
    """`stream` promises so: what only the pair can tell counts as well."""
    for error, options in (
        (OptionError, {"block_size": 6}),
        (PairError, {"cutoff": "threshold:0.5"}),
    ):
        with pytest.raises(error):
            stream(pair, [1, 2, 3], **options)
    with pytest.raises(OptionError):
        stream(pair, [])


def test_threshold_needs_a_confidence_head(pair):
    with pytest.raises(PairError, match="confidence head"):
        generate(pair, [1, 2, 3], cutoff="threshold:0.5")
    assert generate(pair, [1, 2, 3], cutoff="threshold:0", max_tokens=8).stats.accepted == 5


def test_temperatures_that_are_greedy(pair, recwarn):
    """0, None, 0.0 and 1e-6 all are (P29)."""
    want = generate(pair, [1, 2, 3], max_tokens=20, cutoff="full")
    for temperature in (0, 0.0, None, 1e-6, 9.9e-6):
        answer = generate(
            pair, [1, 2, 3], max_tokens=20, temperature=temperature, top_p=0.5, cutoff="full"
        )
        assert answer.tokens == want.tokens
        assert answer.stats.accepted == want.stats.accepted > 10
    assert not recwarn.list


def test_the_border_of_greedy():
    assert Sampling(9.9e-6).greedy and Options.of(temperature=None).sampling.greedy
    assert not Sampling(1e-5).greedy


def test_lowest_sampled_temperature_is_finite(pair):
    """Just above the border the target's best token still is the only likely one."""
    want = generate(pair, [1, 2, 3], max_tokens=20).tokens
    assert generate(pair, [1, 2, 3], max_tokens=20, temperature=1e-5, seed=0).tokens == want
    assert generate(pair, [1, 2, 3], max_tokens=20, temperature=1e-4, seed=0).tokens == want


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_filters_that_leave_one_token(pair, filters):
    want = generate(pair, [1, 2, 3], max_tokens=20)
    answer = generate(pair, [1, 2, 3], max_tokens=20, temperature=2.0, seed=0, **filters)
    assert answer.tokens == want.tokens
    assert answer.stats.accepted == want.stats.accepted


@pytest.mark.parametrize("top_k", [11, 12, 13, 10**9])
def test_top_k_up_to_and_beyond_the_vocabulary(pair, top_k):
    answer = generate(pair, [1, 2, 3], max_tokens=10, temperature=1.0, seed=0, top_k=top_k)
    assert len(answer.tokens) == 10
    if top_k >= 12:
        alone = generate(pair, [1, 2, 3], max_tokens=10, temperature=1.0, seed=0)
        assert answer.tokens == alone.tokens


def test_logprobs_are_given_when_asked_for(pair):
    assert generate(pair, [1, 2, 3], max_tokens=9).logprobs is None
    answer = generate(pair, [1, 2, 3], max_tokens=9, logprobs=True, cutoff="full")
    assert len(answer.logprobs) == 9
    responses = list(stream_generate(pair, [1, 2, 3], max_tokens=9, logprobs=True, cutoff="full"))
    assert [r.logprobs for r in responses] == answer.logprobs
    assert [r.generation_tokens for r in responses] == list(range(1, 10))
    assert [r.finish_reason for r in responses] == [None] * 8 + ["length"]
    assert [(r.round, r.position) for r in responses] == (
        [(0, 0)] + [(1, k) for k in range(6)] + [(2, 0), (2, 1)]
    )
    assert [r.from_draft for r in responses] == [False] + [True] * 5 + [False, True, False]


class Odd(Constant):
    """A policy of somebody else's that answers nonsense."""

    needs_confidence = True

    def __init__(self, cap, cut):
        self._cap, self._cut = cap, cut

    def plan(self, drafts, context):
        return Plan(self._cap, self._cap, look=True)

    def cut(self, confidence):
        return self._cut


@pytest.mark.parametrize(("cap", "cut"), [(99, 99), (3, 99), (0, 5), (-4, 2), (5, 0), (2, 1)])
def test_policy_of_ones_own(cap, cut):
    target = markov_target(random_table(0, 12))
    reference = plain(target, [1, 2, 3], 30)
    drafter = ScriptedDrafter(target, scripts(reference, 12)["oracle"], block=5,
                              confidence=sure(0.5))  # fmt: skip
    policy = Odd(cap, cut)
    assert parse_cutoff(policy) is policy
    answer = generate(pair_with(target, drafter), [1, 2, 3], max_tokens=30, cutoff=policy)
    assert answer.tokens == reference.tokens
    want = max(0, min(cap, cut, 5))
    assert answer.stats.judged_at[:1] == ([] if want == 0 else [answer.stats.judged_at[0]])
    assert len(answer.stats.judged_at) == want


def test_options_are_hashable_and_stay_as_they_are():
    options = Options.of(max_tokens=3, seed=None)
    assert options == Options.of(max_tokens=3)
    assert options.resolved_seed != options.resolved_seed
    assert Options.of(seed=7).resolved_seed == 7
