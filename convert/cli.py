"""`dspark-mlx convert`."""

from __future__ import annotations

import argparse

from dspark_mlx.command import Parser
from dspark_mlx.convert.write import Conversion, convert

EXAMPLE = """\
example:
  dspark-mlx convert deepseek-ai/dspark_qwen3_4b_block7 -o qwen3-4b-drafter -q --q-bits 8
"""


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    p = Parser(
        prog="dspark-mlx convert",
        description="Convert a PyTorch drafter checkpoint to MLX. PyTorch is not needed.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("source", help="hub id or folder (safetensors, sharded, .bin or .pt)")
    p.add_argument("-o", "--output", required=True, metavar="DIR", help="folder to write")
    p.add_argument("--target", help="its target: copies of the target's tables are left out")
    p.add_argument("-q", "--quantize", action="store_true", help="quantize the matrices")
    p.add_argument("--q-bits", type=int, choices=(4, 8), help="default 8")
    p.add_argument("--q-group-size", type=int, choices=(32, 64, 128), help="default 64")
    p.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: as in the source"
    )
    p.add_argument(
        "--share-embeddings",
        action="store_true",
        help="use the target's tables even where they differ (a quantized target)",
    )
    p.add_argument(
        "--draft-vocab",
        type=int,
        metavar="N",
        help="keep the N most useful rows of the vocabulary head (needs --target)",
    )
    p.add_argument(
        "--vocab-text",
        action="append",
        default=[],
        metavar="FILE",
        help="count tokens over this text or .jsonl file; may be repeated (default: built-in text)",
    )
    p.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    return p


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    p = parser()
    args = p.parse_args(argv)
    if not args.quantize and (args.q_bits or args.q_group_size):
        p.error("--q-bits and --q-group-size need -q")
    if args.vocab_text and args.draft_vocab is None:
        p.error("--vocab-text needs --draft-vocab")
    result = convert(
        args.source,
        args.output,
        target=args.target,
        bits=(args.q_bits or 8) if args.quantize else None,
        group_size=args.q_group_size or 64,
        dtype=args.dtype,
        share_embeddings=args.share_embeddings,
        draft_vocab=args.draft_vocab,
        vocab_texts=args.vocab_text,
        overwrite=args.overwrite,
    )
    print(report(result))
    return 0


def report(result: Conversion) -> str:
    """The conversion in a few lines."""
    config = result.config
    heads = (
        [f"{config.markov.type} Markov head of rank {config.markov.rank}"] if config.markov else []
    )
    heads += ["confidence head"] if config.confidence else []
    lines = [
        f"read     {result.packaging}: {config.kind} ({config.backbone} form), "
        f"{config.num_hidden_layers} layers, block {config.block_size}, "
        f"{', '.join(heads) or 'no heads'}",
        f"taps     outputs of layers {', '.join(map(str, config.target_layer_ids))} "
        f"of a target with {config.num_target_layers} layers",
    ]
    lines += [f"dropped  {name}: {reason}" for name, reason in result.dropped.items()]
    if config.draft_vocab_size is not None:
        lines.append(
            f"vocab    {config.draft_vocab_size} of {config.vocab_size} tokens are drafted"
        )
    if config.quantization:
        widths = ", ".join(sorted({f"{b} bits" for b in config.quantization["modules"].values()}))
        group = config.quantization["group_size"]
        packed = f"{result.quantized} matrices to {widths}" if widths else "nothing"
        lines.append(f"packed   {packed}, group {group}")
        if result.unquantized:
            lines.append(f"dense    {', '.join(result.unquantized)}")
    lines.append(
        f"wrote    {result.output}: {result.tensors} tensors, "
        f"{result.bytes_read / 1e6:.1f} MB -> {result.bytes_written / 1e6:.1f} MB, "
        "read back and equal"
    )
    return "\n".join(lines)
