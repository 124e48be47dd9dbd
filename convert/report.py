"""What a conversion did, as text and as JSON beside the weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dspark_mlx.convert.selftest import Trial, verdict
from dspark_mlx.convert.write import Conversion

FILE = "conversion.json"


def text(result: Conversion) -> str:
    """The conversion in a few lines."""
    config = result.config
    markov, confidence = config.markov, config.confidence
    heads = [f"{markov.type} Markov head of rank {markov.rank}"] if markov else []
    heads += ["confidence head"] if confidence else []
    lines = [
        f"read     {result.packaging}: {config.kind} ({config.backbone} form), "
        f"{config.num_hidden_layers} layers, block {config.block_size}, "
        f"{', '.join(heads) or 'no heads'}",
        f"taps     outputs of layers {', '.join(map(str, config.target_layer_ids))} "
        f"of a target with {config.num_target_layers or 'any number of'} layers",
    ]
    lines += [f"dropped  {name}: {reason}" for name, reason in result.dropped.items()]
    if config.draft_vocab_size is not None:
        lines.append(
            f"vocab    {config.draft_vocab_size} of {config.vocab_size} tokens can be drafted"
        )
    if config.quantization:
        lines.append(f"packed   {_packed(result)}, group {config.quantization['group_size']}")
        if result.unquantized:
            lines.append(f"dense    {', '.join(result.unquantized)}")
    before, after = result.round_bytes
    lines.append(
        f"a round  reads {before / 1e6:.1f} MB of the drafter as stored, now {after / 1e6:.1f} MB"
    )
    lines.append(
        f"wrote    {result.output}: {result.tensors} tensors, "
        f"{result.bytes_read / 1e6:.1f} MB -> {result.bytes_written / 1e6:.1f} MB, "
        "read back and equal"
    )
    return "\n".join(lines)


def _packed(result: Conversion) -> str:
    """How many matrices of which part have how many bits."""
    assert result.config.quantization is not None
    count = len(result.config.quantization["modules"])
    by_bits: dict[int, list[str]] = {}
    for part, bits in result.quantized.items():
        by_bits.setdefault(bits, []).append(part)
    if len(by_bits) == 1:
        return f"{count} matrices to {next(iter(by_bits))} bits"
    each = ", ".join(f"{bits} bits ({', '.join(parts)})" for bits, parts in by_bits.items())
    return f"{count} matrices to {each or 'no bits: no width allows it'}"


def trials_text(trials: list[Trial], source: Trial | None) -> str:
    """The self-test in a few lines, its warning last."""
    shown = ", ".join(f"{t.name} {t.accept_len:.2f}" for t in trials)
    lines = [f"accepts  {shown} (expected tokens per round, {len(trials[0].by_anchor)} anchors)"]
    if source is not None:
        change = trials[0].accept_len / source.accept_len - 1
        lines.append(
            f"source   {source.accept_len:.2f} on the same text: {change:+.1%} by converting"
        )
    if (warning := verdict(trials)) is not None:
        lines.append(f"WARNING  {warning}")
    return "\n".join(lines)


def save(result: Conversion, trials: list[Trial], source: Trial | None) -> None:
    """Write everything to conversion.json in the converted folder."""
    body: dict[str, Any] = asdict(result)
    body["output"] = result.output.name
    body["selftest"] = {trial.name: trial.accept_len for trial in trials}
    body["selftest_source"] = source and source.accept_len
    body["warning"] = verdict(trials) if trials else None
    path = result.output / FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(body, indent=1, default=str) + "\n", encoding="utf-8")
    partial.replace(path)
