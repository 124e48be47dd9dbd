"""Below float32 the tokens are plain decoding's, except where rounding explains the difference."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from dspark_mlx import generate
from tests.fakes import ScriptedDrafter, pair_with, plain, scripts
from tests.families import FAMILIES, VOCAB, family_target, quantizable

COUNT = 20


def rounding(target, ids, prompt_length):
    """The last logits of ids in passes of other widths, and how far these are apart."""
    rows = []
    for width in (len(ids), 8, 3, 1):
        cache = target.new_cache()
        run, begin = target.tapped(), min(prompt_length - 1, len(ids) - 1)
        if begin:
            run(mx.array(ids[:begin]), cache)
        for at in range(begin, len(ids), width):
            logits, _ = run(mx.array(ids[at : at + width]), cache)
        rows.append(np.array(logits[-1].astype(mx.float32)))
    return rows[-1], max(float(np.abs(row - rows[-1]).max()) for row in rows)


def unexplained(target, prompt, ours, theirs):
    """Where two greedy answers part by more than rounding: (place, margin, rounding), or None."""
    at = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    if at is None:
        return None
    row, noise = rounding(target, [*prompt, *theirs[:at]], len(prompt))
    margin = float(row[theirs[at]] - row[ours[at]])
    # a logit is stored in 8 bits: its last place is always open
    granted = max(2 * noise, 2**-7 * float(np.abs(row).max()))
    return None if margin <= granted else (at, margin, noise)


MIXTURES = ("gpt_oss", "qwen3_moe", "qwen3_5_moe", "qwen3_next")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bits", [None, 4])
def test_parts_only_on_near_ties(family, bits):
    if family in MIXTURES and mx.default_device() == mx.cpu:
        pytest.skip("MLX multiplies gathered matrices in float32 only on a CPU")
    target = family_target(family, 2)
    if bits:
        nn.quantize(target.model, group_size=32, bits=bits, class_predicate=quantizable)
    target.model.set_dtype(mx.bfloat16)
    prompt = [3, 1, 4, 1, 5]
    reference = plain(target, prompt, COUNT)
    script = scripts(reference, VOCAB)["wrong" if bits else "first 2 right"]
    pair = pair_with(target, ScriptedDrafter(target, script))
    answer = generate(pair, prompt, max_tokens=COUNT)
    assert unexplained(target, prompt, answer.tokens, reference.tokens) is None


def test_a_fault_is_no_near_tie():
    """A token that verification should have rejected is not explained away."""
    target = family_target("qwen3_5", 2)
    target.model.set_dtype(mx.bfloat16)
    reference = plain(target, [3, 1, 4, 1, 5], 12)
    row, _ = rounding(target, [3, 1, 4, 1, 5, *reference.tokens[:7]], 5)
    wrong = int(np.argsort(row)[VOCAB // 2])
    ours = [*reference.tokens[:7], wrong, *reference.tokens[8:]]
    assert unexplained(target, [3, 1, 4, 1, 5], ours, reference.tokens)[0] == 7
