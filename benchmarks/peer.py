"""`dspark-mlx bench` with mlx-dspark as further arms, where it is installed.

    python benchmarks/peer.py --peer 1,2,7 --peer-target DIR --peer-drafter DIR [bench options]

`--peer` names its draft caps; its drafter folder is the unconverted checkpoint. Times are its
own, from inside its call, which is to its favour.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspark_mlx.commands import bench
from dspark_mlx.errors import UserError
from dspark_mlx.measure.arms import split_list
from dspark_mlx.measure.benchmark import Outcome
from dspark_mlx.sampling import Sampling


class PeerRunner:
    """mlx-dspark at one draft cap, greedy."""

    def __init__(self, target: Any, tokenizer: Any, drafter: Any, cap: int) -> None:
        self._models, self._cap = (target, tokenizer, drafter), cap
        self.name = f"mlx-dspark cap {cap}"

    def run(self, ids: Sequence[int], max_tokens: int, sampling: Sampling, seed: int) -> Outcome:
        import mlx.core as mx
        from mlx_dspark import speculative_generate

        mx.reset_peak_memory()
        result = speculative_generate(
            *self._models, prompt_ids=list(ids), max_new_tokens=max_tokens,
            max_draft_tokens=self._cap, lookup_drafts=False,
        )  # fmt: skip
        decode = result.seconds - result.prefill_seconds
        memory = mx.get_peak_memory() / 1e9
        return Outcome(tuple(result.token_ids), result.prefill_seconds, decode, memory)


def peers(args: Any) -> list[PeerRunner]:
    import mlx.core as mx
    from mlx_dspark import load_drafter, load_target

    target, tokenizer = load_target(str(args.peer_target), require_tap=True)
    drafter, _ = load_drafter(str(args.peer_drafter), quantize=False)
    if mx.default_device() == mx.cpu:  # as ours: float32 is this backend's fast path
        for model in (target.model, drafter):
            model.set_dtype(mx.float32)
    drafter.ctx_window = 4096
    return [
        PeerRunner(target, tokenizer, drafter, cap) for cap in split_list(args.peer, "--peer", int)
    ]


def main() -> int:
    parser = bench.parser()
    parser.prog = "benchmarks/peer.py"
    parser.add_argument("--peer", default="1,2,7", help="mlx-dspark draft caps")
    parser.add_argument("--peer-target", type=Path, required=True)
    parser.add_argument("--peer-drafter", type=Path, required=True)
    args = parser.parse_args()
    try:
        return bench.run(args, lambda models: peers(args))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
