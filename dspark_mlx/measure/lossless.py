"""The lossless contract, checked: speculative against plain decoding, token for token.

Greedy answers must be equal. In floating point a verify pass of several rows may round
differently from a pass of one, so that two nearly equal logits change places; whether a
difference is that, or a fault of the logic, is decided here by looking at both passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generate_step

from dspark_mlx.api import stream
from dspark_mlx.events import Prefilled, Round
from dspark_mlx.pair import Pair

from .arms import Arm
from .observe import Pass, Recorder, row_exact, watched

WINDOW = 64  # rows before the difference on which rounding is measured
# a pass of several rows may be this far from one-row passes, as a share of the largest logit;
# beyond it the forward itself is wrong
CEILING = {mx.float32: 1e-4, mx.float16: 2e-2, mx.bfloat16: 5e-2}
FEW = 4  # units in the last place of the largest logit that are always granted

EQUAL, TIE = "equal", "near tie"
FAULTS = {
    "not the target's word": "the token is not the largest logit of its own verify pass",
    "ended elsewhere": "the answers agree up to the end of the shorter one",
    "forward differs": "a pass of several rows is further from one-row passes than rounding goes",
    "beyond rounding": "the margin is larger than rounding explains",
}


@dataclass(frozen=True)
class Difference:
    """Where two answers part. `at` counts generated tokens from 0, `position` the whole text.

    Margins are logit differences: of plain decoding's token over the other in its own row, and
    of the speculative token over plain's in the row that verified it. `rounding` is the largest
    difference of any logit between one-row passes and passes of `width` rows, measured on this
    answer with the bare model.
    """

    at: int
    position: int
    plain: int | None
    speculative: int | None
    plain_margin: float | None = None
    speculative_margin: float | None = None
    rounding: float | None = None
    width: int | None = None
    largest: float | None = None
    verdict: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def plain_answer(pair: Pair, ids: Sequence[int], max_tokens: int) -> list[int]:
    """mlx-lm's own greedy decoding, stop token included, within the target's context."""
    room = pair.target.context_limit
    limit = max_tokens if room is None else min(max_tokens, room - len(ids))
    tokens: list[int] = []
    for token, _ in generate_step(mx.array(list(ids)), pair.target.model, max_tokens=limit):
        tokens.append(int(token))
        if tokens[-1] in pair.stop_ids:
            break
    return tokens


def speculative_answer(arm: Arm, ids: Sequence[int], max_tokens: int, exact: bool) -> list[int]:
    """The greedy answer of an arm; `exact` verifies one row at a time."""
    pair = row_exact(arm.pair, len(ids)) if exact else arm.pair
    return [token for tokens in _committed(pair, arm, ids, max_tokens) for token in tokens]


def _committed(pair: Pair, arm: Arm, ids: Sequence[int], max_tokens: int) -> Any:
    """Committed tokens, pass by pass."""
    events = stream(
        pair, ids, max_tokens=max_tokens, temperature=0.0, cutoff=arm.cutoff,
        block_size=arm.block_size,
    )  # fmt: skip
    for event in events:
        if isinstance(event, Prefilled):
            yield (event.token,)
        elif isinstance(event, Round):
            yield event.tokens


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token in which two answers differ (or end), None when equal."""
    if list(plain) == list(other):
        return None
    parted = (i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b)
    return next(parted, min(len(plain), len(other)))


def explain(
    plain_pair: Pair,
    arm: Arm,
    ids: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    max_tokens: int,
    exact: bool = False,
) -> Difference | None:
    """The first difference of two answers and its verdict; None when they are equal."""
    at = first_difference(plain, other)
    if at is None:
        return None
    position = len(ids) + at
    if at >= min(len(plain), len(other)):
        ours = other[at] if at < len(other) else None
        theirs = plain[at] if at < len(plain) else None
        return Difference(at, position, theirs, ours, verdict="ended elsewhere")
    judged = _judging_pass(arm, ids, at, max_tokens, exact)
    width = judged.logits.shape[0]
    single = _rows(plain_pair, ids, plain[:at], 1)
    wide = _rows(plain_pair, ids, plain[:at], width)
    row = judged.logits[position - 1 - judged.start].astype(mx.float32)
    alone = single[-1]
    rounding = float(mx.abs(single - wide).max())
    found = Difference(
        at=at,
        position=position,
        plain=plain[at],
        speculative=other[at],
        plain_margin=float(alone[plain[at]] - alone[other[at]]),
        speculative_margin=float(row[other[at]] - row[plain[at]]),
        rounding=rounding,
        width=width,
        largest=float(mx.abs(alone).max()),
    )
    own = mx.argmax(row).item() == other[at]
    return Difference(**found.to_dict() | {"verdict": verdict(found, own, judged.logits.dtype)})


def verdict(found: Difference, own: bool, dtype: mx.Dtype) -> str:
    """What a difference is; `own`: the token is the largest logit of the row that verified it."""
    assert found.rounding is not None and found.largest is not None
    assert found.plain_margin is not None
    if not own:
        return "not the target's word"
    if found.rounding > CEILING.get(dtype, CEILING[mx.float32]) * found.largest:
        return "forward differs"
    granted = max(2 * found.rounding, FEW * mx.finfo(dtype).eps * found.largest)
    return TIE if found.plain_margin <= granted else "beyond rounding"


def _judging_pass(arm: Arm, ids: Sequence[int], at: int, max_tokens: int, exact: bool) -> Pass:
    """The forward that decided token `at`, by running the same generation again."""
    recorder = Recorder()
    pair = watched(arm.pair, recorder)
    if exact:
        pair = row_exact(pair, len(ids))
    done = 0
    for tokens in _committed(pair, arm, ids, max_tokens):
        done += len(tokens)
        if done > at:
            break
        recorder.passes.clear()
    return recorder.covering(len(ids) + at - 1)


def _rows(pair: Pair, ids: Sequence[int], tokens: Sequence[int], width: int) -> mx.array:
    """Logits [n, V], float32, of the last rows (up to WINDOW), computed `width` rows at a time.

    The bare model runs; the prompt is processed as plain decoding does it.
    """
    cache = pair.target.new_cache()
    first = len(ids) - 1
    if first:
        logits, _ = pair.tapped(mx.array(list(ids[:-1])), cache)
        mx.eval(logits)
    rest = [ids[-1], *tokens]
    rows: list[mx.array] = []
    for begin in range(0, len(rest), width):
        logits, _ = pair.tapped(mx.array(rest[begin : begin + width]), cache)
        mx.eval(logits)
        rows = [*rows, *logits][-WINDOW:]
    return mx.stack(rows).astype(mx.float32)
