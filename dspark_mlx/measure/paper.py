"""The figures of the DSpark paper (arXiv 2607.05147), to stand beside a user's own.

Measured there at temperature 1.0 with 2048 new tokens, bfloat16, one request at a time.
"""

from __future__ import annotations

import re
from typing import Any

SETS = (
    "gsm8k", "math500", "aime25", "mbpp", "humaneval", "livecodebench", "mt-bench", "alpaca",
    "arena-hard-v2",
)  # fmt: skip

# Table 1: accept length by data set, in the order of SETS
ACCEPT_LEN = {
    ("qwen3_4b", "eagle3"): (5.14, 4.62, 3.92, 3.69, 4.16, 3.77, 2.39, 2.26, 2.55),
    ("qwen3_4b", "dflash"): (5.40, 4.85, 4.15, 4.40, 4.74, 4.18, 3.07, 2.96, 2.83),
    ("qwen3_4b", "dspark"): (6.11, 5.70, 4.89, 5.13, 5.38, 4.86, 3.64, 3.54, 3.29),
    ("qwen3_8b", "eagle3"): (5.30, 4.77, 3.91, 3.96, 4.33, 4.17, 2.66, 2.54, 2.54),
    ("qwen3_8b", "dflash"): (5.33, 4.91, 4.07, 4.36, 4.64, 4.39, 3.11, 2.98, 2.81),
    ("qwen3_8b", "dspark"): (6.17, 5.78, 5.01, 5.16, 5.52, 5.17, 3.72, 3.58, 3.21),
    ("qwen3_14b", "eagle3"): (5.24, 4.60, 3.71, 3.81, 4.14, 4.01, 2.62, 2.47, 2.48),
    ("qwen3_14b", "dflash"): (5.41, 4.84, 3.98, 4.44, 4.59, 4.33, 3.10, 2.94, 2.72),
    ("qwen3_14b", "dspark"): (6.21, 5.74, 4.94, 5.26, 5.43, 5.02, 3.70, 3.58, 3.13),
    ("gemma4_12b", "eagle3"): (5.87, 5.46, 4.83, 4.72, 5.37, 4.16, 3.19, 3.06, 2.72),
    ("gemma4_12b", "dflash"): (5.45, 5.04, 4.22, 4.39, 4.95, 3.70, 2.98, 2.84, 2.59),
    ("gemma4_12b", "dspark"): (6.05, 5.78, 5.12, 5.11, 5.64, 4.51, 3.49, 3.35, 2.92),
}

# Figure 2: conditional acceptance by position, Qwen3-4B, read off the plot
CONDITIONAL = {
    ("math", "dflash"): (0.885, 0.827, 0.820, 0.834, 0.841, 0.839, 0.828),
    ("math", "eagle3"): (0.811, 0.823, 0.838, 0.844, 0.851, 0.856, 0.850),
    ("math", "dspark"): (0.905, 0.890, 0.888, 0.885, 0.887, 0.891, 0.882),
    ("code", "dflash"): (0.865, 0.815, 0.797, 0.801, 0.810, 0.801, 0.777),
    ("code", "eagle3"): (0.771, 0.774, 0.781, 0.791, 0.787, 0.794, 0.784),
    ("code", "dspark"): (0.886, 0.872, 0.860, 0.861, 0.858, 0.859, 0.851),
    ("chat", "dflash"): (0.718, 0.648, 0.638, 0.661, 0.682, 0.692, 0.688),
    ("chat", "eagle3"): (0.534, 0.589, 0.642, 0.678, 0.709, 0.729, 0.733),
    ("chat", "dspark"): (0.735, 0.738, 0.740, 0.744, 0.758, 0.766, 0.761),
}

# Figure 6: position (from 1) -> ECE before and after calibration, AUROC; Alpaca
CALIBRATION = {
    1: (0.057, 0.020, 0.818),
    3: (0.082, 0.017, 0.812),
    5: (0.058, 0.008, 0.864),
    7: (0.033, 0.004, 0.907),
}

_RELEASED = re.compile(r"(dspark|dflash|eagle3)_(qwen3_(?:4|8|14)b|gemma4_12b)(?:_block7|_ttt7)?$")


def released(name: str) -> tuple[str, str] | None:
    """(target, method) when a drafter's id is one of the paper's releases, else None."""
    found = _RELEASED.search(name.rstrip("/"))
    return (found[2], found[1]) if found else None


def figures(name: str) -> dict[str, Any] | None:
    """The paper's figures for a released drafter, JSON-ready; None for any other."""
    which = released(name)
    if which is None:
        return None
    target, method = which
    own: dict[str, Any] = {
        "source": "arXiv 2607.05147, temperature 1.0, block 7",
        "accept_len": dict(zip(SETS, ACCEPT_LEN[which], strict=True)),  # Table 1
    }
    if target == "qwen3_4b":
        own["conditional"] = {  # Figure 2
            domain: list(values) for (domain, m), values in CONDITIONAL.items() if m == method
        }
    if which == ("qwen3_4b", "dspark"):
        own["calibration"] = {  # Figure 6
            str(k): {"ece": before, "ece_calibrated": after, "auroc": auroc}
            for k, (before, after, auroc) in CALIBRATION.items()
        }
    return own
