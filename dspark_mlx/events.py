"""What a generation tells the world: frozen records of ints, floats and strings, no arrays.

Everything that a front end shows is a fold over these events; nobody else keeps counters.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prefilling:
    """A chunk of a long prompt is processed; more of it is to come.

    `done` positions of `total` are in the cache, `cached` of them from before.
    """

    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True)
class Prefilled:
    """The prompt is processed and the first token chosen; that token belongs to no round."""

    prompt_tokens: int
    token: int
    text: str
    logprob: float | None
    seconds: float
    finish_reason: str | None = None  # set when this token is already the last one
    cached_tokens: int = 0  # of the prompt, that an earlier turn had processed already


@dataclass(frozen=True)
class Round:
    """One decode round: a block drafted, part of it verified, part of that accepted.

    `tokens` are the committed ones: `accepted` drafts, then `final` unless an accepted draft
    was a stop token. `origin` of the final token: "correction" (the target's word in place of
    a rejected draft), "bonus" (after a fully accepted proposal), "plain" (nothing was
    verified), or None (there is no final token).
    `proposal_len` is the verified length, cut after an accepted stop token (DeepSpec's count).
    `reason`: why the policy verified so much, in a word or two ("stood down": nothing was
    drafted because speculation would have lost; "drafter limit": the block would have passed the
    drafter's own limit). `looked`: it waited for the confidences.
    `gain`: the rate it expected of speculation, as a multiple of plain decoding's.
    """

    index: int  # 1, 2, ...
    anchor: int
    anchor_position: int
    proposed: tuple[int, ...]
    confidence: tuple[float, ...] | None  # one per proposed token, where the drafter has a head
    verified: int
    accepted: int
    proposal_len: int
    final: int | None
    origin: str | None
    tokens: tuple[int, ...]
    texts: tuple[str, ...]  # text that each committed token completed
    logprobs: tuple[float, ...] | None
    seconds: float
    draft_seconds: float | None = None  # only in a profiled run
    verify_seconds: float | None = None
    finish_reason: str | None = None  # set on the last round
    reason: str = ""
    looked: bool = False
    gain: float | None = None

    @property
    def text(self) -> str:
        """Text that this round added."""
        return "".join(self.texts)

    @property
    def accept_len(self) -> int:
        """Committed tokens, the bonus or correction included."""
        return len(self.tokens)


@dataclass(frozen=True)
class Finished:
    """The end of a generation. `reason`: "stop" (a stop token or string) or "length" (a limit).

    `rule` is how drafts were accepted: "greedy", "speculative" (sampling), or "match" (equality
    with what an opaque sampler drew).
    """

    reason: str
    tokens: int
    syncs: int
    seed: int
    peak_memory: float  # GB, of the whole process so far
    stop_string: str | None = None  # the one that ended the answer
    rule: str = "greedy"


@dataclass(frozen=True)
class Failed:
    """The generation broke off; `message` is one line, `user_error` says who can mend it."""

    message: str
    user_error: bool


Event = Prefilling | Prefilled | Round | Finished | Failed
