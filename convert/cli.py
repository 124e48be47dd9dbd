"""`dspark-mlx convert`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from dspark_mlx.command import Parser
from dspark_mlx.convert import report
from dspark_mlx.convert.corpus import Corpus
from dspark_mlx.convert.result import Conversion
from dspark_mlx.convert.selftest import Findings, self_test
from dspark_mlx.convert.torch_parity import torch_parity
from dspark_mlx.convert.write import convert
from dspark_mlx.drafters.packing import BACKBONE, BITS, PARTS
from dspark_mlx.loading import load, with_drafter

EXAMPLE = """\
example:
  dspark-mlx convert deepseek-ai/dspark_qwen3_4b_block7 -o qwen3-4b-drafter -q --q-bits 8
"""

CHOICES: dict[str, int | None] = {**{str(bits): bits for bits in BITS}, "dense": None}
NAMES = {"head": "vocabulary head", "markov": "Markov tables", "embeddings": "embedding table"}


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
    _add_quantization(p)
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
    p.add_argument(
        "--vocab-generate",
        type=int,
        default=0,
        metavar="TOKENS",
        help="count over so many tokens that the target itself generates",
    )
    p.add_argument(
        "--vocab-prompts",
        action="append",
        default=[],
        metavar="FILE",
        help="prompts (text: one a line, or .jsonl) that it answers before questions of its own",
    )
    p.add_argument(
        "--no-selftest",
        action="store_true",
        help="do not try the drafter with --target (shifted taps and slots included)",
    )
    p.add_argument("--overwrite", action="store_true", help="replace an existing folder")
    return p


def _add_quantization(p: Parser) -> None:
    p.add_argument("-q", "--quantize", action="store_true", help="quantize the matrices")
    p.add_argument("--q-bits", type=int, choices=(4, 8), help="of every part (default 8)")
    for part in PARTS:
        p.add_argument(
            f"--q-{part}-bits",
            choices=CHOICES,
            help=f"of the {NAMES[part]} alone (dense: not quantized)",
        )
    p.add_argument("--q-group-size", type=int, choices=(32, 64, 128), help="default 64")


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    p = parser()
    args = p.parse_args(argv)
    apart = {part: getattr(args, f"q_{part}_bits") for part in PARTS}
    if not args.quantize and (args.q_bits or args.q_group_size or any(apart.values())):
        p.error("--q-bits, --q-...-bits and --q-group-size need -q")
    corpus = Corpus(args.vocab_text, args.vocab_generate, args.vocab_prompts)
    if not corpus.is_built_in and args.draft_vocab is None:
        p.error("--vocab-text, --vocab-generate and --vocab-prompts need --draft-vocab")
    result = convert(
        args.source,
        args.output,
        target=args.target,
        bits=_bits(args.q_bits or 8, apart) if args.quantize else None,
        group_size=args.q_group_size or 64,
        dtype=args.dtype,
        share_embeddings=args.share_embeddings,
        draft_vocab=args.draft_vocab,
        corpus=corpus,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        overwrite=args.overwrite,
    )
    print(report.text(result), flush=True)
    parity = torch_parity(args.source)
    if isinstance(parity, dict):
        print(report.parity_text(parity), flush=True)
    found = None if args.no_selftest or args.target is None else _self_test(args, result)
    report.save(result, found, parity)
    if found is not None:
        print(report.findings_text(found))
    return 0


def _bits(every: int, apart: Mapping[str, str | None]) -> dict[str, int | None]:
    """Part -> bits: one number for all, but for what was asked of single parts."""
    chosen = {part: CHOICES[word] for part, word in apart.items() if word is not None}
    return dict.fromkeys((BACKBONE, *PARTS), every) | chosen


def _self_test(args: argparse.Namespace, result: Conversion) -> Findings:
    """Acceptance with the named target; the source's too, where something was given up."""
    pair = load(args.target, result.output)
    source = (lambda: with_drafter(pair, args.source).drafter) if result.lossy else None
    return self_test(pair, source)
