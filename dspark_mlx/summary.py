"""One screen of plain text about a generation."""

from __future__ import annotations

from .stats import Stats

BAR = 24
ENOUGH, FLOOR = 20, 0.1  # rounds, and the share of first drafts that a working pair accepts
UNUSABLE = (
    "warning     hardly any draft is accepted: a drafter for another target or precision, or taps "
    "and slots misread; `dspark-mlx inspect --target` and `convert --target` tell which"
)


def summary(stats: Stats, reason: str) -> str:
    """Speed, accept length, acceptance by position as bars, memory; only what was measured."""
    reused = f" ({stats.cached_tokens} known already)" if stats.cached_tokens else ""
    seconds = _seconds(stats.prefill_seconds)
    lines = ["", f"prompt      {stats.prompt_tokens} tokens{reused}, {seconds}"]
    rate = f"{stats.tokens_per_second:.1f} tok/s" if stats.tokens_per_second else "no rounds"
    lines.append(f"generation  {stats.tokens} tokens, {rate}, ended by {reason}")
    if stats.rounds and stats.proposed:
        lines.append(
            f"accepted    {stats.accept_len:.2f} tokens per round over {stats.rounds} rounds; "
            f"{stats.proposed} drafted, {stats.verified} verified, {stats.accepted} accepted"
        )
        lines += _bars(stats)
        if stats.judged_at[0] >= ENOUGH and stats.acceptance[0] < FLOOR:
            lines.append(UNUSABLE)
    elif stats.rounds:
        lines.append("accepted    nothing was drafted (plain decoding)")
    if stats.past_limit:
        lines.append(
            f"stood down  {stats.past_limit} rounds were plain: past the drafter's own limit"
        )
    if stats.rule == "match":
        lines.append("rule        drafts accepted where they match what the sampler drew")
    lines += _decided(stats)
    if stats.draft_seconds is not None and stats.verify_seconds is not None:
        lines.append(_split(stats, stats.draft_seconds, stats.verify_seconds))
    if stats.seed is not None:  # the closing event came: nobody interrupted
        lines.append(f"memory      {stats.peak_memory:.2f} GB at peak; seed {stats.seed}")
    return "\n".join(lines)


def _decided(stats: Stats) -> list[str]:
    """What the policy made of it, where it weighed cost against gain."""
    if stats.expected_gain is None:
        return []
    gain, share = stats.expected_gain, stats.stood_down / stats.rounds
    line = f"decided     verified {stats.verified / stats.rounds:.1f} drafts per round"
    if share:
        line += f", stood down in {share:.0%} of rounds"
    line += f"; speculation was expected to run at {gain:.2f}x plain decoding"
    if gain < 1.0:
        line += ": it does not pay here"
    return [line]


def _bars(stats: Stats) -> list[str]:
    rows = []
    for k, share in enumerate(stats.acceptance, start=1):
        bar = "#" * round(share * BAR)
        rows.append(f"  draft {k:<3} {bar:<{BAR}} {share:4.0%} of {stats.judged_at[k - 1]}")
    return rows


def _split(stats: Stats, draft: float, verify: float) -> str:
    other = max(stats.decode_seconds - draft - verify, 0.0)
    parts = (("draft", draft), ("verify", verify), ("other", other))
    shares = ", ".join(f"{name} {value / stats.decode_seconds:.0%}" for name, value in parts)
    return f"time        {shares} (profiled: two more synchronisations per round)"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def printable(text: str) -> str:
    """Text without control characters, so that a model cannot drive the terminal."""
    return "".join(c for c in text if c in "\n\t" or not _is_control(c))


def _is_control(char: str) -> bool:
    return ord(char) < 32 or 127 <= ord(char) < 160
