"""A long chat and a long prompt on the real pair: `python -m pytest -m slow -s -n 0`."""

import time

import mlx.core as mx
import pytest

from dspark_mlx import ChatSession, Prefilled, Round, Stats, load, memory, stream
from dspark_mlx.prompt import prompt_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
ASKED = (
    "Name three primary colours.", "Which of them is the warmest?", "Write a sentence about it.",
    "Now the same about the coldest one.", "What is 12 times 12?", "And half of that?",
    "Name a city in Japan.", "What is it known for?", "Say that in five words.",
    "Summarise what we talked about.",
)  # fmt: skip
LENGTH = 48
LONG = 6000


@pytest.fixture(scope="module")
def pair(smollm2_folder):
    return load("smollm2-135m")


def timed(events):
    """Tokens, text, proposals, the prefill event, and seconds to the first token."""
    begun, first, stats, tokens, text, proposed = time.perf_counter(), None, Stats(), [], "", []
    for event in events:
        stats.add(event)
        if isinstance(event, Prefilled):
            first, seconds = event, time.perf_counter() - begun
            tokens.append(event.token)
        elif isinstance(event, Round):
            tokens += event.tokens
            proposed.append(event.proposed)
        text += getattr(event, "text", "")
    return tokens, text, proposed, first, seconds


def test_ten_turns_with_and_without_reuse(pair):
    """The same answers, and the time to the first token of every turn."""
    session, ratio = ChatSession(pair, max_tokens=LENGTH), None
    for turn, text in enumerate(ASKED, 1):
        messages = [*session.messages, {"role": "user", "content": text}]
        cold = timed(stream(pair, messages=messages, max_tokens=LENGTH))
        warm = timed(session.stream(text))
        assert warm[:3] == cold[:3], turn
        first, ratio = warm[3], cold[4] / warm[4]
        print(
            f"turn {turn:2}: prompt {first.prompt_tokens} tokens, {first.cached_tokens} known; "
            f"first token after {warm[4]:.2f} s, {cold[4]:.2f} s without reuse ({ratio:.1f} times)"
        )
    assert ratio > 3


def test_a_prompt_of_six_thousand_tokens(pair):
    """It works, the drafter's memory is bounded by its window, and the estimate holds."""
    words = " ".join(f"Item {k} costs {k * 7 % 100} coins." for k in range(900))
    ids = prompt_ids(pair, messages=[{"role": "user", "content": words}])
    ids = [*ids[: LONG - 40], *ids[-40:]]
    assert len(ids) == LONG
    for window in (4096, 512):
        estimate = memory.request_bytes(pair, 0, LONG + 8, window, 512)
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        tokens, _, _, first, seconds = timed(
            stream(pair, ids, max_tokens=8, prefill_step_size=512, drafter_context=window)
        )
        peak = mx.get_peak_memory() - before
        print(
            f"{first.prompt_tokens} tokens, drafter window {window}: first token after "
            f"{seconds:.1f} s; {memory.gigabytes(memory.weight_bytes(pair))} of weights, request "
            f"estimated at {memory.gigabytes(estimate)}, {memory.gigabytes(peak)} at peak"
        )
        assert len(tokens) == 8
        assert estimate / 3 < peak < 3 * estimate
