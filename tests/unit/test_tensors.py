"""Checkpoint folders and safetensors files: what is chosen, what is read, what is refused."""

import json
import os
import random
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.checkpoints.safetensors_file import SafetensorsFile
from dspark_mlx.checkpoints.tensors import TensorInfo, open_tensors
from dspark_mlx.errors import CheckpointError

FIXTURES = Path(__file__).parents[1] / "fixtures"
VANILLA = FIXTURES / "dspark-vanilla"
SHARDED = FIXTURES / "dspark-vanilla-sharded"
INDEX = "model.safetensors.index.json"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def entry(begin, end, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def pack(header, data=b"", length=None):
    """A safetensors file from a header (a dict, or raw bytes) and its data."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def small(values=(1.0, 2.0), name="w"):
    data = np.array(values, np.float32).tobytes()
    return pack({name: entry(0, len(data), (len(values),))}, data)


@pytest.mark.parametrize("twin", ["", "-bin", "-sharded", "-bf16"])
def test_all_forms_of_one_checkpoint_hold_equal_tensors(twin):
    expected = mx.load(str(VANILLA / "model.safetensors"))
    dtype = mx.bfloat16 if twin == "-bf16" else mx.float32
    with open_tensors(FIXTURES / f"dspark-vanilla{twin}") as source:
        assert set(source.infos) == set(expected)
        for name, value in expected.items():
            spelling = "BF16" if twin == "-bf16" else "F32"
            assert source.infos[name] == TensorInfo(spelling, value.shape)
            found = source.read(name)
            assert found.dtype == dtype
            assert mx.array_equal(found, value.astype(dtype))


def test_path_and_files_are_those_on_disk():
    shards = tuple(sorted(SHARDED.glob("*.safetensors")))
    for place in (SHARDED, SHARDED / INDEX):
        with open_tensors(place) as source:
            assert (source.path, source.files) == (place, shards)
    with open_tensors(VANILLA / "model.safetensors") as source:
        assert source.files == (source.path,) == (VANILLA / "model.safetensors",)


def test_arrays_outlive_the_source_and_unknown_names_are_refused():
    for place in (VANILLA, SHARDED, FIXTURES / "dspark-vanilla-bin"):
        with open_tensors(place) as source:
            value = source.read("norm.weight")
            with pytest.raises(CheckpointError, match="has no tensor 'x'"):
                source.read("x")
        assert value.shape == (64,) and mx.isfinite(value).all()


SAMPLES = {
    "BOOL": (np.array([1, 0, 1], np.uint8), mx.bool_),
    "U8": (np.array([0, 255, 3], np.uint8), mx.uint8),
    "I16": (np.array([-5, 2, 3], np.int16), mx.int16),
    "F16": (np.array([1.5, -2, 0], np.float16), mx.float16),
    "U32": (np.array([1, 2**32 - 1, 0], np.uint32), mx.uint32),
    "I64": (np.array([-(2**60), 1, 2], np.int64), mx.int64),
    "F64": (np.array([0.1, 1e300, 2], np.float64), mx.float64),
    "F8_E4M3": (np.array([56, 64, 0], np.uint8), mx.uint8),
}


@pytest.mark.parametrize("dtype", SAMPLES)
@pytest.mark.parametrize("padding", range(2))
def test_dtypes_are_kept_wherever_the_data_starts(tmp_path, dtype, padding):
    values, expected = SAMPLES[dtype]
    raw = json.dumps({"w": entry(0, values.nbytes, (3, 1), dtype)}).encode() + b" " * padding
    path = tmp_path / "model.safetensors"
    path.write_bytes(pack(raw, values.tobytes()))
    with open_tensors(tmp_path) as source:
        found = source.read("w")
    assert (found.dtype, found.shape) == (expected, (3, 1))
    assert found.reshape(-1, stream=mx.cpu).tolist() == values.tolist()


def test_metadata_scalars_and_empty_tensors(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "none": entry(0, 0, (0, 3)),
        "one": entry(0, 4, ()),
        "last": entry(4, 4, (2, 0)),
    }
    path = tmp_path / "a.safetensors"
    path.write_bytes(pack(header, np.float32(2.5).tobytes()))
    with SafetensorsFile(path) as source:
        assert source.metadata == {"format": "pt"}
        assert source.read("one").item() == 2.5
        assert (source.read("none").shape, source.read("last").shape) == ((0, 3), (2, 0))


DATA = bytes(8)
BAD_SAFETENSORS = [
    ("empty", b"", "the file is empty"),
    ("short", b"\1\0\0", "truncated: expected at least 8 bytes, found 3"),
    ("pointer", POINTER.encode(), "git lfs pull"),
    ("huge header", pack(b"{}", length=2**62), f"claims a header of {2**62} bytes"),
    ("long header", pack(b"{}", length=500), "truncated: expected 508 bytes or more, found 10"),
    ("no json", pack(b"{oops"), "not valid JSON"),
    ("no text", pack(b"\xff\xfe{}"), "not valid JSON"),
    ("deep json", pack(b"[" * 200_000), "not valid JSON"),
    ("long number", pack(b'{"w":' + b"9" * 9000 + b"}"), "not valid JSON"),
    ("a list", pack(b"[]"), "JSON list, expected an object"),
    ("duplicate", pack(b'{"w":1,"w":2}'), "duplicate key 'w'"),
    ("metadata", pack({"__metadata__": {"a": 1}}), "`__metadata__` is not"),
    ("no entry", pack({"w": 5}), "lacks one of"),
    ("no offsets", pack({"w": {"dtype": "F32", "shape": []}}), "lacks one of"),
    ("dtype", pack({"w": entry(0, 8, dtype="F4")}, DATA), "unknown dtype 'F4'; known: BOOL"),
    ("dtype type", pack({"w": entry(0, 8, dtype=[])}, DATA), "unknown dtype 'list'"),
    ("negative dim", pack({"w": entry(0, 8, (-1, -2))}, DATA), "impossible shape"),
    ("huge dim", pack({"w": entry(0, 0, (0, 2**40))}), "impossible shape"),
    ("float dim", pack({"w": entry(0, 8, (2.0,))}, DATA), "impossible shape"),
    ("bool dim", pack({"w": entry(0, 4, (True,))}, DATA[:4]), "impossible shape"),
    ("rank", pack({"w": entry(0, 4, [1] * 50)}, DATA[:4]), "impossible shape"),
    ("size", pack({"w": entry(0, 8, (3,))}, DATA), "has 8 bytes, but its dtype and shape need 12"),
    ("reversed", pack({"w": entry(8, 0)}, DATA), "impossible `data_offsets`"),
    ("negative", pack({"w": entry(-8, 0)}, DATA), "impossible `data_offsets`"),
    ("text offset", pack({"w": entry("0", "8")}, DATA), "impossible `data_offsets`"),
    ("overlap", pack({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "'b' at byte 4 overlaps"),
    ("same bytes", pack({"a": entry(0, 8), "b": entry(0, 8)}, DATA), "overlaps another"),
    ("gap", pack({"a": entry(0, 8), "b": entry(9, 17)}, bytes(17)), "leaves a gap"),
    ("gap at start", pack({"a": entry(1, 9)}, bytes(9)), "leaves a gap"),
    ("truncated", small()[:-3], f"expected {len(small())} bytes, found {len(small()) - 3}"),
    ("trailing", small() + b"x", "trailing bytes"),
]


@pytest.mark.parametrize(
    ("content", "part"), [pytest.param(*row[1:], id=row[0]) for row in BAD_SAFETENSORS]
)
def test_damaged_safetensors(tmp_path, content, part):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_tensors(tmp_path)
    message = str(caught.value)
    assert part in message and message.startswith(str(path)) and "\n" not in message


WEIGHTS = VANILLA / "model.safetensors"
TORCH = FIXTURES / "dspark-vanilla-bin" / "pytorch_model.bin"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "other.safetensors"], "model.safetensors"),
        (["draft.safetensors", "pytorch_model.bin"], "draft.safetensors"),
        (["pytorch_model.bin", "old.bin"], "pytorch_model.bin"),
        (["draft.pt", "training_args.bin", "optimizer.pt"], "draft.pt"),
        (["draft.pth"], "draft.pth"),
        (["draft.bin"], "draft.bin"),
    ],
)
def test_order_of_preference(tmp_path, names, chosen):
    for name in names:
        shutil.copy(WEIGHTS if name.endswith("safetensors") else TORCH, tmp_path / name)
    with open_tensors(tmp_path) as source:
        assert source.files == (tmp_path / chosen,)


def test_torch_shards_under_an_index(tmp_path):
    shutil.copy(TORCH, tmp_path / "pytorch_model-00001-of-00001.bin")
    with open_tensors(TORCH) as source:
        places = dict.fromkeys(source.infos, "pytorch_model-00001-of-00001.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    with open_tensors(tmp_path) as source:
        assert source.infos.keys() == places.keys()
        assert source.read("norm.weight").shape == (64,)


def index(weight_map, **shards):
    """Write an index and the named shards, each with the one tensor given."""

    def make(folder):
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        for name, tensor in shards.items():
            (folder / f"{name}.safetensors").write_bytes(small(name=tensor))

    return make


def text(name, content):
    return lambda folder: (folder / name).write_text(content)


A, B = "a.safetensors", "b.safetensors"
BAD_FOLDERS = [
    ("nothing", lambda folder: None, "which holds nothing"),
    ("no weights", text("config.json", "{}"), "which holds config.json; expected model.safet"),
    ("empty map", index({}, a="w", b="v"), "has no `weight_map`"),
    ("index text", text(INDEX, "hello"), "no readable JSON index"),
    ("index deep", text(INDEX, "[" * 200_000), "no readable JSON index"),
    ("index bytes", lambda f: (f / INDEX).write_bytes(b"\xff\xff"), "no readable JSON index"),
    ("index list", text(INDEX, "[]"), "has no `weight_map`"),
    ("index map", text(INDEX, '{"weight_map": ["a"]}'), "has no `weight_map`"),
    ("index pointer", text(INDEX, POINTER), "git lfs pull"),
    ("number", index({"w": 1}), "in 'int', not a file of this folder"),
    ("traversal", index({"w": "../a.safetensors"}), "'../a.safetensors', not a file of this"),
    ("absolute", index({"w": "/etc/a.safetensors"}), "not a file of this folder"),
    ("backslash", index({"w": "..\\a.safetensors"}), "not a file of this folder"),
    ("parent", index({"w": ".."}), "not a file of this folder"),
    ("missing shard", index({"w": A, "v": B}, a="w"), "the shard b.safetensors, which is missing"),
    ("not in shard", index({"w": A, "v": A}, a="w"), "places tensor 'v' in a.safetensors"),
    ("wrong shard", index({"w": B, "v": A}, a="w", b="v"), "which does not hold it"),
    ("twice", index({"w": A, "v": B}, a="w", b="w"), "'w' is in two shards, a.safetensors and b"),
    ("odd shard", index({"w": INDEX}), "ends in '.json'"),
    ("torch pointer", text("pytorch_model.bin", POINTER), "git lfs pull"),
]


@pytest.mark.parametrize(("make", "part"), [pytest.param(*r[1:], id=r[0]) for r in BAD_FOLDERS])
def test_bad_folders(tmp_path, make, part):
    make(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        open_tensors(tmp_path)
    assert part in str(caught.value) and "\n" not in str(caught.value)


def test_ambiguous_missing_and_foreign_paths(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        shutil.copy(WEIGHTS, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"several .*: a\.safetensors, b\.safetensors; name"):
        open_tensors(tmp_path)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        open_tensors(tmp_path / "nowhere")
    (tmp_path / "x.onnx").write_bytes(b"?")
    with pytest.raises(CheckpointError, match=r"ends in '\.onnx'; expected one of \.safetensors"):
        open_tensors(tmp_path / "x.onnx")


def test_random_damage_loads_or_raises_checkpoint_error(tmp_path):
    dice = random.Random(3)
    good = pack({"a": entry(0, 8), "b": entry(8, 20, (2, 3), "BF16")}, bytes(range(20)))
    path, refused = tmp_path / "model.safetensors", 0
    for _ in range(300):
        damaged = bytearray(good)
        damaged[dice.randrange(len(good))] = dice.randrange(256)
        path.write_bytes(damaged)
        if dice.random() < 0.3:
            os.truncate(path, dice.randrange(len(good)))
        try:
            with open_tensors(tmp_path) as source:
                for name in source.infos:
                    source.read(name)
        except CheckpointError:
            refused += 1
    assert 100 < refused < 300
