"""What a conversion did, as text and as JSON beside the weights."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from dspark_mlx.convert.result import Conversion
from dspark_mlx.convert.selftest import Findings
from dspark_mlx.convert.torch_parity import TOLERANCE

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
    renamed = f", {len(result.renamed)} renamed or made anew" if result.renamed else ""
    lines.append(f"tensors  {result.read} of the source{renamed}")
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


def findings_text(found: Findings) -> str:
    """The self-test in a few lines, its warning last."""
    trials = found.conventions
    shown = ", ".join(f"{t.name} {t.accept_len:.2f}" for t in trials)
    lines = [f"accepts  {shown} (expected tokens per round, {trials[0].anchors} anchors)"]
    if found.source is not None:
        whole = found.source.accept_len
        change = f"{trials[0].accept_len / whole - 1:+.1%} by converting"
        each = ", ".join(f"{t.name} alone {t.accept_len / whole - 1:+.1%}" for t in found.parts)
        lines.append(
            f"source   {whole:.2f} on the same text: {change}" + (f" ({each})" if each else "")
        )
    if found.warning is not None:
        lines.append(f"WARNING  {found.warning}")
    return "\n".join(lines)


def parity_text(parity: dict[str, float]) -> str:
    """The comparison with PyTorch in one line, and a warning where it found more than rounding."""
    shown = ", ".join(f"{stage} {value:.0e}" for stage, value in parity.items())
    line = f"parity   largest difference from a PyTorch forward, relative: {shown}"
    if odd := [stage for stage, value in parity.items() if not value <= TOLERANCE]:
        line += f"\nWARNING  {', '.join(odd)} differ from the PyTorch forward by more than rounding"
    return line


def save(
    result: Conversion, found: Findings | None = None, parity: dict[str, float] | str | None = None
) -> None:
    """Write everything to conversion.json in the converted folder."""
    body: dict[str, Any] = asdict(result)
    body["output"] = result.output.name
    trials = found.conventions if found else []
    body["selftest"] = {trial.name: trial.accept_len for trial in trials}
    body["selftest_source"] = found.source.accept_len if found and found.source else None
    body["selftest_parts"] = {t.name: t.accept_len for t in found.parts} if found else {}
    body["warning"] = found.warning if found else None
    body["torch_parity"] = parity
    path = result.output / FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(body, indent=1, default=str) + "\n", encoding="utf-8")
    partial.replace(path)
