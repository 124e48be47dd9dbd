"""The cache adapter on every family: snapshots, cutting back, forks, broken forwards, memory."""

import gc
import weakref

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from dspark_mlx.cache import TargetCache, handle
from dspark_mlx.cache.kinds import KINDS, Rotating
from tests.fakes import offsets
from tests.families import FAMILIES, OTHERS, VOCAB, WINDOW, family_target

EVERY = [*FAMILIES, *OTHERS]
FREE = ["qwen3", "llama", "mistral3", "smollm3", "qwen3_moe"]
IDS = np.random.default_rng(3).integers(0, VOCAB, 60).tolist()


def run(target, cache, begin, end, ids=IDS):
    """Logits of these ids, computed."""
    logits, _ = target.tapped()(mx.array(ids[begin:end]), cache)
    mx.eval(logits)
    return np.array(logits)


def after(target, length, chunk=60):
    """A fresh cache of the first ids."""
    cache = target.new_cache()
    for begin in range(0, length, chunk):
        run(target, cache, begin, min(begin + chunk, length))
    return cache


@pytest.mark.parametrize("family", EVERY)
def test_back_to_a_snapshot(family):
    """To the same bits, more than once, whatever came after; and not on another branch."""
    target = family_target(family)
    cache, wants, snapshots = target.new_cache(), {}, {}
    for begin, end in ((0, 4), (4, 5), (5, 14), (14, 15), (15, 16), (16, 24)):
        run(target, cache, begin, end)
        snapshots[end] = cache.snapshot()
        wants[end] = run(target, cache, end, end + 3), run(target, cache, end + 3, end + 4)
        cache.restore(snapshots[end])
    run(target, cache, 24, 40)
    for end in (24, 16, 15, 5, 4):
        assert cache.can_restore(snapshots[end])
        cache.restore(snapshots[end])
        assert cache.length == end and offsets(cache) <= {end}
        for begin, stop, want in ((end, end + 3, wants[end][0]), (end + 3, end + 4, wants[end][1])):
            assert np.array_equal(run(target, cache, begin, stop), want)
        assert not cache.can_restore(snapshots.get(16 if end == 15 else 24)) or end >= 16
    with pytest.raises(RuntimeError, match="cut away"):
        cache.restore(snapshots[14])
    with pytest.raises(RuntimeError, match="another cache"):
        target.new_cache().restore(snapshots[4])


@pytest.mark.parametrize("family", EVERY)
def test_cutting_back_without_a_snapshot(family):
    """Wherever it says that it can, the result is the state of a fresh run."""
    target = family_target(family)
    assert target.new_cache().trims_freely == (family in FREE)
    full = run(target, target.new_cache(), 0, 16)
    cache = target.new_cache()
    steps = np.concatenate([run(target, cache, k, k + 1) for k in range(16)])
    tolerance = max(1e-5, 2 * np.abs(full - steps).max())
    possible = set()
    for length in (4, WINDOW, 12):
        for chunk in (1, 60):
            made = after(target, length, chunk)
            assert not made.can_trim_to(length + 1) and not made.can_trim_to(-1)
            assert made.can_trim_to(length)
            for shorter in range(length + 1):
                cache = made.fork()
                if not cache.can_trim_to(shorter):
                    with pytest.raises(RuntimeError, match=f"from {length} to {shorter}"):
                        cache.trim_to(shorter)
                    assert cache.length == length
                    continue
                cache.keep(shorter)
                possible.add((length, shorter))
                one = run(target, cache, shorter, shorter + 1)
                more = run(target, cache, shorter + 1, shorter + 4)
                got = np.concatenate([one, more])
                np.testing.assert_allclose(got, steps[shorter : shorter + 4], atol=tolerance)
    # windows until they wrap, recurrent states never
    cuts = {(a, b) for a in (4, WINDOW, 12) for b in range(a + 1)}
    if family in FREE or family == "llama4":
        assert possible == cuts
    elif family in ("gemma3_text", "gemma4_text", "gpt_oss", "muse_glimmer"):
        assert possible == {(a, b) for a, b in cuts if a <= WINDOW or a == b}
    else:
        assert possible == {(a, b) for a, b in cuts if a == b}


def test_chunks_that_are_gone():
    """llama4 drops rows before the current chunk (of 8) when the next forward begins."""
    target = family_target("llama4")
    cache = after(target, 25, 5)
    assert cache.entries[0].start_position == 12
    assert [n for n in range(26) if cache.can_trim_to(n)] == [*range(16, 26)]


@pytest.mark.parametrize("family", EVERY)
def test_forks_do_not_know_each_other(family):
    target = family_target(family)
    cache = after(target, 13, 5)
    snapshot, other = cache.snapshot(), cache.fork()
    want = run(target, cache, 13, 21), run(target, cache, 21, 22)
    wrong = IDS[::-1]
    run(target, other, 13, 14, wrong), run(target, other, 14, 18, wrong)
    third = cache.fork()
    other.restore(snapshot)
    for begin, end, logits in ((13, 21, want[0]), (21, 22, want[1])):
        assert np.array_equal(run(target, other, begin, end), logits)
    assert np.array_equal(run(target, third, 22, 25), run(target, cache, 22, 25))


class Broken(Exception):
    pass


def breaking(forward, after):
    """The layers' forward, raising at the end of call number `after`."""
    calls = iter(range(100))

    def call(layer, *args, **kwargs):
        output = forward(layer, *args, **kwargs)
        if next(calls) == after:
            raise Broken
        return output

    return call


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("rows", [1, 5])
def test_a_forward_that_breaks_off(family, rows, monkeypatch):
    """In any layer: the cache is as it was, also when the break came after the forward."""
    target = family_target(family)
    run_on = target.tapped([target.depth - 1])
    for length in (3, 20):
        cache = after(target, length)
        want = run(target, cache.fork(), length, length + 3)
        layers = type(target.family.layers(target.model)[0])
        for layer in range(target.depth):
            with monkeypatch.context() as patch, pytest.raises(Broken):
                patch.setattr(layers, "__call__", breaking(layers.__call__, layer))
                run_on(mx.array(IDS[:rows]), cache)
            assert cache.length == length and offsets(cache) <= {length}
            assert np.array_equal(run(target, cache.fork(), length, length + 3), want)
        run_on(mx.array(IDS[:rows]), cache)
        cache.undo()
        assert np.array_equal(run(target, cache, length, length + 3), want)


@pytest.mark.parametrize("family", EVERY)
def test_chunks_do_not_matter(family):
    """Any cutting of a prompt gives the state of one pass, within what passes differ anyway."""
    target = family_target(family)
    whole = run(target, target.new_cache(), 0, 22)
    cache = target.new_cache()
    steps = np.concatenate([run(target, cache, k, k + 1) for k in range(22)])
    tolerance = max(1e-5, 2 * np.abs(whole - steps).max())
    for chunk in (1, 3, WINDOW, 7, 18):
        got = run(target, after(target, 19, chunk), 19, 22)
        np.testing.assert_allclose(got, whole[19:], atol=tolerance)


def test_keep_is_checked():
    target = family_target("qwen3")
    cache = after(target, 5)
    with pytest.raises(RuntimeError, match="cannot keep 6 of 5"):
        cache.keep(6)
    cache.entries[1].offset = 4  # as a forward that skipped a layer would leave it
    with pytest.raises(RuntimeError, match="KVCache holds 4, not 5"):
        cache.keep(5)


def test_a_window_that_lost_rows_is_found():
    """Cutting a ring by its logical length is what corrupts it silently (P16)."""
    ring = RotatingKVCache(4)
    for width in (9, 1):
        rows = mx.ones((1, 1, width, 2))
        ring.update_and_fetch(rows, rows)
    with pytest.raises(RuntimeError, match="lost rows"):
        Rotating().cut(ring, None, 9)
    with pytest.raises(RuntimeError, match="cannot go back"):
        Rotating().shorten(ring, 3)


@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("size", [4, 7])
def test_windows_at_every_offset(size, keep):
    """Rows in the window after any block and any cut: the last ones, each once (P09, P10)."""
    kind, numbers = KINDS[RotatingKVCache], np.random.default_rng(size)
    for length in range(3 * size):
        for block in range(1, 2 * size):
            for kept in range(block + 1):
                ring, at = RotatingKVCache(size, keep), 0
                while at < length:
                    at = _feed(ring, at, min(int(numbers.integers(1, 4)), length - at))
                mark = kind.mark(ring)
                _feed(ring, length, block)
                if kept == 0:
                    kind.rewind(ring, mark)
                elif kept < block:
                    kind.cut(ring, mark, length + kept)
                assert ring.offset == length + kept
                for width in (3, 1):
                    start = ring.offset
                    rows = _rows(start, width)
                    seen = ring.update_and_fetch(rows, rows)[0][0, 0, :, 0].tolist()
                    need = min(start + 1, size)
                    wanted = [*range(keep), *range(start - need + 1 + keep, start)]
                    if start + 1 <= size:
                        wanted = range(start)
                    assert set(wanted) <= set(seen), (length, block, kept, width)
                    assert seen.count(start) == 1 and max(seen) == start + width - 1


def _rows(start, width):
    return mx.arange(start, start + width, dtype=mx.float32).reshape(1, 1, width, 1)


def _feed(ring, at, width):
    ring.update_and_fetch(_rows(at, width), _rows(at, width))
    return at + width


def test_snapshots_cost_no_memory_and_hold_no_graph():
    target = family_target("gemma3_text", hidden_size=32)
    cache = after(target, 30, 7)
    mx.eval(cache.arrays())
    mx.clear_cache()
    before = mx.get_active_memory()
    snapshots = [cache.snapshot() for _ in range(5)]
    assert mx.get_active_memory() <= before + 64
    ring = cache.entries[0]
    assert snapshots[0].nbytes == ring.keys.nbytes + ring.values.nbytes
    want = run(target, cache, 30, 31)
    del ring
    for k in range(31, 50):
        run(target, cache, k, k + 1)
    mx.clear_cache()
    held = mx.get_active_memory() - before
    assert held <= 2 * snapshots[0].nbytes + 1024, "one copy for all of them"
    cache.restore(snapshots[3])
    assert np.array_equal(run(target, cache, 30, 31), want)


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "nemotron_h", "gpt_oss", "jamba"])
def test_memory_of_many_rounds_does_not_grow(family):
    """Cuts leave lazy states; each is computed with the next forward and lets go of its past."""
    target = family_target(family)
    cache, run_on, sizes = after(target, 20), target.tapped([0]), []
    for _ in range(40):
        logits, _ = run_on(mx.array(IDS[:8]), cache)
        mx.eval(logits)
        cache.keep(cache.length - 6)
        mx.clear_cache()
        sizes.append(mx.get_active_memory())
    del logits
    assert max(sizes[20:]) <= max(sizes[5:20]) + 2048


def test_a_snapshot_is_forgotten_with_its_cache():
    target = family_target("lfm2")
    cache = after(target, 8)
    state = weakref.ref(cache.snapshot())
    gc.collect()
    assert state() is None


def test_writes_do_not_reach_a_handle():
    """The property of MLX that snapshots rest on: shared memory, separate names."""
    array = mx.zeros((4, 256, 1024))
    mx.eval(array)
    mx.clear_cache()
    before = mx.get_active_memory()
    other = handle(array)
    mx.eval(other)
    assert mx.get_active_memory() <= before + 64
    array[0] = 1.0
    assert (other.sum().item(), array[0, 0, 0].item()) == (0.0, 1.0)


def test_every_kind_is_told_by_its_exact_type():
    assert KVCache in KINDS and type("Other", (KVCache,), {}) not in KINDS
    cache = TargetCache(family_target("qwen3_5").model)
    assert {type(entry) for entry in cache.entries} <= set(KINDS)
    assert [type(e) for e in cache.entries] == [
        type(e) for e in make_prompt_cache(family_target("qwen3_5").model)
    ]
