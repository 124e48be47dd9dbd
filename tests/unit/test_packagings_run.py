"""Every packaging loaded beside a real little target: the text is the target's own."""

import mlx.core as mx
import pytest

from dspark_mlx import generate, load

from .. import gguf_writer
from .. import packagings as pack
from ..tools import FIXTURES, TARGET
from .test_packagings import written

PROMPT = "The quick brown fox"
FORMS = {
    "zlab": ("dflash-deepspec", written(pack.zlab)),
    "speculators": ("dspark-vanilla", written(pack.speculators, full=False)),
    "reduced": ("dspark-vanilla", written(pack.speculators, rows=list(range(0, 320, 3)))),
    "eagle3": ("eagle3", written(pack.eagle3, rows=list(range(0, 320, 3)))),
    "specforge": ("dspark-rnn", written(pack.specforge, fused=True)),
    "lfm2": ("dspark-vanilla", written(pack.lfm2)),
    "nvidia": ("dspark-vanilla", written(pack.nvidia)),
    "ornith": ("dspark-vanilla", written(pack.ornith)),
    "gguf": ("dspark-vanilla", lambda *a: gguf_writer.gguf(*a, dtype=mx.bfloat16)),
}


@pytest.fixture(scope="module")
def alone():
    return generate(load(TARGET, False), PROMPT, max_tokens=24).tokens


@pytest.mark.parametrize("form", FORMS)
def test_the_text_is_the_targets(tmp_path, alone, form):
    name, writer = FORMS[form]
    folder = writer(tmp_path / "d", *pack.native(name))
    done = generate(load(TARGET, folder), PROMPT, max_tokens=24, cutoff="full")
    assert done.tokens == alone and done.stats.proposed > 0


def test_a_trained_drafter_accepts_as_much_in_any_packaging(tmp_path):
    """What differs in nothing but the packaging differs in no count either."""
    config, tensors = pack.native()
    stats = []
    for writer in (lambda *a: FIXTURES / "dspark-vanilla", written(pack.speculators, full=False),
                   written(pack.specforge), written(pack.lfm2), gguf_writer.gguf):  # fmt: skip
        folder = writer(tmp_path / str(len(stats)), config, tensors)
        done = generate(load(TARGET, folder), "hello the", max_tokens=40, cutoff="full")
        stats.append((done.tokens, done.stats.rounds, done.stats.proposed, done.stats.accepted))
    assert len(set(map(str, stats))) == 1
    assert stats[0][3] > 10


def test_zlab_over_a_target_that_scales_and_caps(tmp_path):
    """A Qwen3-form drafter gets Gemma's raw rows and head: no scale, no cap of the target's."""
    config, tensors = pack.native("dflash-deepspec")
    config |= {"num_target_layers": 6, "target_layer_ids": [0, 1, 2, 3, 4]}
    folder = pack.write(tmp_path / "d", *pack.zlab(config, tensors))
    target = FIXTURES / "target-gemma4"
    pair = load(target, folder)
    stored = mx.load(str(target / "model.safetensors"))
    name = next(n for n in stored if n.endswith("embed_tokens.weight"))
    rows = stored[name].astype(mx.float32)
    ids, hidden = mx.array([3, 17, 300]), mx.random.normal((2, 64))
    assert mx.array_equal(pair.drafter.embed(ids), rows[ids])
    assert mx.allclose(pair.drafter.logits(hidden), hidden @ rows.T, atol=1e-5)
    plain = generate(load(target, False), PROMPT, max_tokens=20).tokens
    assert generate(pair, PROMPT, max_tokens=20).tokens == plain
