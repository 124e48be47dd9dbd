"""`dspark-mlx inspect`: what a drafter folder is and needs, without loading weights."""

from __future__ import annotations

import argparse
import json
from typing import Any

from dspark_mlx import hub
from dspark_mlx.checkpoints import DrafterSource, open_drafter
from dspark_mlx.checkpoints.source import read_config
from dspark_mlx.command import Parser
from dspark_mlx.drafters.packing import part_of
from dspark_mlx.errors import PairError
from dspark_mlx.fit import ConfigShape, check_fit, folder_strings
from dspark_mlx.loading import target_strings


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(prog="dspark-mlx inspect", description="Show what a drafter is, and what it needs.")
    p.add_argument("drafter", help="name, hub id or folder")
    p.add_argument("--target", help="say whether it fits this target (name, hub id or folder)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    return p


def main(argv: list[str]) -> int:
    """Run the command; exit code 1 when the drafter does not fit the named target."""
    args = parser().parse_args(argv)
    with (source := open_drafter(hub.drafter_folder(args.drafter))).tensors:
        found = describe(source)
    if args.target:
        found["fits"], found["why_not"] = fits(source, args.target)
    print(json.dumps(found) if args.json else text(found))
    return 0 if found.get("fits", True) else 1


def describe(source: DrafterSource) -> dict[str, Any]:
    """Kind, conventions and sizes, JSON-ready."""
    infos = source.tensors.infos
    return {
        "folder": str(source.folder),
        "packaging": source.packaging,
        "config": source.config.to_dict(),
        "tensors": len(infos),
        "bytes": sum(info.nbytes for info in infos.values()),
    }


def fits(source: DrafterSource, target: str) -> tuple[bool, str | None]:
    """Whether the drafter fits a target, by its config and tokenizer; and if not, why."""
    folder = hub.target_folder(target)
    shape = ConfigShape.of(read_config(folder), target)
    drafted = folder_strings(source.folder)
    try:
        check_fit(
            shape,
            source.config,
            source.folder.name,
            tokens=lambda: target_strings(folder),
            drafted=drafted,
        )
    except PairError as error:
        return False, str(error)
    return True, None


def text(found: dict[str, Any]) -> str:
    """`describe`'s result in a few lines."""
    c = found["config"]
    needs = (
        f"hidden size {c['hidden_size']}, vocabulary {c['vocab_size']}, "
        f"{c['num_target_layers'] or 'any number of'} layers"
    )
    lines = [
        f"drafter   {found['folder']} ({found['packaging']})",
        f"kind      {c['kind']}, {c['backbone']} form, {c['num_hidden_layers']} layers, "
        f"{found['tensors']} tensors, {found['bytes'] / 1e6:.1f} MB, {_packed(c)}",
        f"block     {c['block_size']} slots, predicts from slot {c['predict_from_slot']}, "
        f"mask token {c['mask_token_id']}",
        f"layers    {_masks(c)}; {_rope(c['rope'])}",
        f"taps      {c['tap_convention']} {', '.join(map(str, c['target_layer_ids']))}",
        f"heads     {_heads(c)}",
        f"tables    embedding: {c['embeddings']}, head: {c['head']}"
        + (f" ({c['draft_vocab_size']} rows)" if c["draft_vocab_size"] else ""),
        f"needs     a target with {needs}",
    ]
    if "fits" in found:
        lines.append("fits      yes" if found["fits"] else f"fits      no: {found['why_not']}")
    return "\n".join(lines)


def _heads(c: dict[str, Any]) -> str:
    markov = c["markov"]
    parts = [f"{markov['type']} Markov head of rank {markov['rank']}"] if markov else []
    if c["confidence"]:
        stored = c["confidence_temperatures"]
        parts.append("confidence head" + (" with stored temperatures" if stored else ""))
    return ", ".join(parts) or "none"


def _masks(c: dict[str, Any]) -> str:
    """What the rows of a block see, layer by layer where it differs."""
    if c["kind"] == "eagle3":  # drafts one by one
        seen = ["causal" + _window(m) for m in c["layer_masks"]] or ["causal"]
    else:
        seen = [("causal block" if m["causal"] else "sees the whole block") + _window(m)
                for m in c["layer_masks"]] or ["sees the whole block"]  # fmt: skip
    every = seen[0] if len(set(seen)) == 1 else ", ".join(seen)
    return every + (", attention sinks" if c["attention_sinks"] else "")


def _window(mask: dict[str, Any]) -> str:
    return "" if mask["window"] is None else f" within {mask['window']} positions"


def _rope(rope: dict[str, Any]) -> str:
    pairs = "neighbours" if rope["interleaved"] else "halves"
    part = f", {rope['partial']:g} of the pairs" if rope["partial"] < 1 else ""
    part += f", the first {rope['rotary_dims']} dimensions" if rope["rotary_dims"] else ""
    scaled = f", {rope['scaling'].get('rope_type')}" if rope["scaling"] else ""
    return f"rope {rope['theta']:g}, {pairs}{part}{scaled}"


def _packed(c: dict[str, Any]) -> str:
    """The precision of each part."""
    packing = c["quantization"]
    if not packing:
        return c["dtype"]
    parts = {part_of(path): bits for path, bits in packing["modules"].items()}
    return ", ".join(f"{part} {bits} bits" for part, bits in parts.items())
