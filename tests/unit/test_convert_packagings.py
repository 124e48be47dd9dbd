"""Conversion of every packaging: the written folder loads, and drafts as the source does."""

import mlx.core as mx
import pytest

from dspark_mlx.checkpoints import open_drafter
from dspark_mlx.convert import convert

from .. import gguf_writer as writer
from .. import packagings as pack
from ..tools import behaviour, identical
from .test_packagings import opened, written

ROWS = [2, 4, 5, 17, 80, 81, 200, 319]
FORMS = {
    "zlab": ("dflash-deepspec", written(pack.zlab)),
    "speculators": ("dspark-rnn", written(pack.speculators, full=False)),
    "speculators, reduced": ("dspark-vanilla", written(pack.speculators, rows=ROWS)),
    "eagle3": ("eagle3", written(pack.eagle3, rows=ROWS)),
    "specforge": ("dspark-gated", written(pack.specforge, fused=True)),
    "lfm2": ("dspark-vanilla", written(pack.lfm2, neox=False)),
    "nvidia": ("dspark-vanilla", written(pack.nvidia)),
    "ornith": ("dspark-vanilla", written(pack.ornith)),
    "gguf": ("dspark-vanilla", lambda *a: writer.gguf(*a, dtype=mx.bfloat16)),
}


@pytest.mark.parametrize("form", FORMS)
def test_converted_folder_states_and_does_the_same(tmp_path, form):
    name, writer = FORMS[form]
    config, tensors = pack.native(name)
    source = writer(tmp_path / "source", config, tensors)
    result = convert(source, tmp_path / "out", dtype="float32")
    assert result.packaging == open_drafter(source).packaging
    stated, drafter = opened(tmp_path / "out", tensors)
    read, reference = opened(source, tensors)
    reference.set_dtype(mx.float32)
    ours, theirs = stated.to_dict(), read.to_dict()
    assert {k: v for k, v in ours.items() if k not in ("source", "dtype")} == {
        k: v for k, v in theirs.items() if k not in ("source", "dtype")
    }
    assert set(stated.source["sha256"]) <= {p.name for p in source.iterdir()}
    assert identical(behaviour(drafter), behaviour(reference))
