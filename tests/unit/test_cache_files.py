"""Caches on disk."""

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from dspark_mlx.errors import CheckpointError, UserError
from tests.families import FAMILIES, OTHERS, VOCAB, family_target

IDS = np.random.default_rng(3).integers(0, VOCAB, 40).tolist()


def run(target, cache, begin, end):
    logits, _ = target.tapped()(mx.array(IDS[begin:end]), cache)
    mx.eval(logits)
    return np.array(logits)


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
def test_saved_and_loaded(family, tmp_path):
    """The same bits afterwards; the file is one that mlx-lm reads; metadata survive."""
    target = family_target(family)
    cache = target.new_cache()
    for begin, end in ((0, 9), (9, 10), (10, 13)):
        run(target, cache, begin, end)
    cache.keep(11)
    path, notes = tmp_path / "one.safetensors", {"tokens": "[1, 2]", "a.b": "é\n"}
    cache.save(path, notes)
    loaded, read = target.load_cache(path)
    assert (loaded.length, read) == (11, notes)
    assert [type(c) for c in loaded.entries] == [type(c) for c in cache.entries]
    assert [type(c) for c in load_prompt_cache(str(path))] == [type(c) for c in cache.entries]
    for begin, end in ((11, 16), (16, 17), (17, 20)):
        assert np.array_equal(run(target, loaded, begin, end), run(target, cache, begin, end))
    loaded.keep(18)
    assert [p.name for p in tmp_path.iterdir()] == ["one.safetensors"]


def test_an_empty_cache(tmp_path):
    target = family_target("qwen3_5")
    target.new_cache().save(tmp_path / "a.safetensors")
    cache, notes = target.load_cache(tmp_path / "a.safetensors")
    assert (cache.length, notes) == (0, {})
    assert np.array_equal(run(target, cache, 0, 5), run(target, target.new_cache(), 0, 5))


def test_files_that_do_not_fit(tmp_path):
    """Another model's, a damaged one, none, one of mlx-lm alone: one clear line each."""
    target, path = family_target("qwen3"), tmp_path / "c.safetensors"
    cache = target.new_cache()
    run(target, cache, 0, 5)
    cache.save(path)
    for family, changes, words in (
        ("gpt_oss", {}, r"cache 0 is KVCache .*, this target has RotatingKVCache"),
        ("qwen3", {"num_hidden_layers": 3}, "2 caches, this target has 3"),
        ("qwen3", {"head_dim": 8}, r"cache 0 .*\(1, 1, 16\).*\(1, 1, 8\)"),
    ):
        with pytest.raises(CheckpointError, match=words):
            family_target(family, **changes).load_cache(path)
    whole = path.read_bytes()
    for bad in (whole[:100], whole[:-10], b"", b"junk" * 50):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=str(path)):
            target.load_cache(path)
    save_prompt_cache(str(path), cache.entries, {"some": "note"})
    with pytest.raises(CheckpointError, match="not a cache saved by this package"):
        target.load_cache(path)
    with pytest.raises(CheckpointError, match="is not there"):
        target.load_cache(tmp_path / "none")
    with pytest.raises(UserError, match="make it first"):
        cache.save(tmp_path / "no" / "x")


def test_nothing_half_written(tmp_path, monkeypatch):
    target, path = family_target("qwen3"), tmp_path / "c.safetensors"
    cache = target.new_cache()
    run(target, cache, 0, 5)
    cache.save(path)
    before = path.read_bytes()

    def failing(name, *_):
        with open(name, "wb") as file:
            file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("mlx.core.save_safetensors", failing)
    with pytest.raises(OSError, match="disk full"):
        cache.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
