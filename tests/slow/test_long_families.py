"""300 tokens of every target family with every script: each window border at every offset."""

import pytest

from tests.checks import check_run
from tests.fakes import ScriptedDrafter, pair_with, scripts
from tests.families import FAMILIES, OTHERS, VOCAB, family_run

COUNT = 300
WINDOWED = ("gemma3_text", "gemma4_text", "gpt_oss", "muse_glimmer")
CASES = [
    *((family, {}) for family in (*FAMILIES, *OTHERS)),
    *((family, {"sliding_window": window}) for family in WINDOWED for window in (4, 16, 37)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "changes"), CASES, ids=str)
def test_three_hundred_tokens(family, changes):
    for seed in range(20):
        target, reference = family_run(family, COUNT + 1, seed=seed, **changes)
        if reference.margin > 2e-4:
            break
    else:
        pytest.fail("near-ties in all of twenty seeds")
    names = ["wrong", *(f"first {k} right" for k in range(1, 8)), "oracle", "random or right"]
    for script in names:
        for block in (7, 3) if script in ("wrong", "oracle") else (7,):
            drafter = ScriptedDrafter(target, scripts(reference, VOCAB)[script], block=block)
            rounds = check_run(pair_with(target, drafter), reference, COUNT)
            print(f"{family} {changes} {script} {block}: {len(rounds)} rounds")
