"""`dspark-mlx convert`."""

from __future__ import annotations

import argparse
import sys

from dspark_mlx.command import Parser
from dspark_mlx.convert import report
from dspark_mlx.convert.corpus import Corpus
from dspark_mlx.convert.selftest import Trial, accept_length, sample_texts, try_conventions
from dspark_mlx.convert.write import Conversion, convert
from dspark_mlx.loading import load, with_drafter

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


def main(argv: list[str]) -> int:
    """Run the command; returns the exit code."""
    p = parser()
    args = p.parse_args(argv)
    if not args.quantize and (args.q_bits or args.q_group_size):
        p.error("--q-bits and --q-group-size need -q")
    corpus = Corpus(args.vocab_text, args.vocab_generate, args.vocab_prompts)
    if not corpus.is_built_in and args.draft_vocab is None:
        p.error("--vocab-text, --vocab-generate and --vocab-prompts need --draft-vocab")
    result = convert(
        args.source,
        args.output,
        target=args.target,
        bits=(args.q_bits or 8) if args.quantize else None,
        group_size=args.q_group_size or 64,
        dtype=args.dtype,
        share_embeddings=args.share_embeddings,
        draft_vocab=args.draft_vocab,
        corpus=corpus,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        overwrite=args.overwrite,
    )
    print(report.text(result), flush=True)
    trials, source = ([], None) if args.no_selftest else _selftest(args, result)
    report.save(result, trials, source)
    if trials:
        print(report.trials_text(trials, source))
    return 0


def _selftest(args: argparse.Namespace, result: Conversion) -> tuple[list[Trial], Trial | None]:
    """Acceptance with the named target; the source's too, where something was given up."""
    if args.target is None:
        return [], None
    pair = load(args.target, result.output)
    texts = sample_texts(pair)
    trials = try_conventions(pair.target, pair.drafter, texts)
    if result.config.quantization is None and result.config.draft_vocab_size is None:
        return trials, None
    source = with_drafter(pair, args.source).drafter
    return trials, accept_length(pair.target, source, texts, "source")
