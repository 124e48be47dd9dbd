"""PyTorch zip files: what is read, and all that is refused without being executed."""

import contextlib
import os
import pickle
import random
import zipfile
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from dspark_mlx.checkpoints import torch_zip
from dspark_mlx.checkpoints.tensors import TensorInfo, open_tensors
from dspark_mlx.checkpoints.torch_pickle import read_pickle
from dspark_mlx.checkpoints.torch_zip import TorchZipFile
from dspark_mlx.errors import CheckpointError

FIXTURES = Path(__file__).parents[1] / "fixtures"
SIX = np.arange(6, dtype=np.float32)
NO_HOOKS = b"ccollections\nOrderedDict\n)R"


def atom(value):
    """Opcodes that push a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def group(*parts):
    return b"(" + b"".join(parts) + b"t"


def name(dotted):
    module, _, attribute = dotted.rpartition(".")
    return f"c{module}\n{attribute}\n".encode()


def call(function, *args):
    return name(function) + group(*args) + b"R"


def storage(kind="torch.FloatStorage", key="0", count=6):
    return group(atom("storage"), name(kind), atom(key), atom("cpu"), atom(count)) + b"Q"


def tensor(shape=(2, 3), strides=(3, 1), offset=0, source=None):
    place = (atom(offset), atom(shape), atom(strides))
    return call("torch._utils._rebuild_tensor_v2", source or storage(), *place, b"\x89", NO_HOOKS)


def mapping(entries):
    return b"}(" + b"".join(atom(key) + value for key, value in entries.items()) + b"u"


def whole(body):
    return b"\x80\x02" + body + b"."


def write(path, pickled, data=None, order=b"little", compression=zipfile.ZIP_STORED):
    """An archive as torch.save lays it out; `data` maps storage keys to bytes."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        if order is not None:
            archive.writestr("archive/byteorder", order)
        for key, content in ({"0": SIX.tobytes()} if data is None else data).items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def load(path):
    with TorchZipFile(path) as source:
        return {key: source.read(key) for key in source.infos}


def test_the_file_that_torch_wrote_equals_its_safetensors_twin():
    with open_tensors(FIXTURES / "dspark-vanilla-bin") as source:
        assert source.files == (FIXTURES / "dspark-vanilla-bin" / "pytorch_model.bin",)
        expected = mx.load(str(FIXTURES / "dspark-vanilla" / "model.safetensors"))
        assert set(source.infos) == set(expected)
        for key, value in expected.items():
            assert source.infos[key] == TensorInfo("F32", value.shape)
            assert mx.array_equal(source.read(key), value)


def test_views_of_a_shared_storage(tmp_path):
    entries = {
        "plain": tensor(),
        "transposed": tensor((3, 2), (1, 3)),
        "part": tensor((2, 2), (3, 1), 1),
        "scalar": tensor((), (), 5),
        "empty": tensor((0, 4), (4, 1)),
        "parameter": call("torch._utils._rebuild_parameter", tensor(), b"\x88", NO_HOOKS),
    }
    found = load(write(tmp_path / "a.pt", whole(mapping(entries))))
    table = SIX.reshape(2, 3)
    assert found["plain"].tolist() == found["parameter"].tolist() == table.tolist()
    assert found["transposed"].tolist() == table.T.tolist()
    assert found["part"].tolist() == table[:, 1:].tolist()
    assert found["scalar"].shape == () and found["scalar"].item() == 5
    assert found["empty"].shape == (0, 4)


@pytest.mark.parametrize(
    ("kind", "values", "dtype"),
    [
        ("BFloat16Storage", np.array([0x3FC0, 0xC000], np.uint16), mx.bfloat16),
        ("LongStorage", np.array([1, -(2**40)], np.int64), mx.int64),
        ("DoubleStorage", np.array([1.5, 0.1], np.float64), mx.float64),
        ("BoolStorage", np.array([1, 0], np.uint8), mx.bool_),
    ],
)
def test_dtypes_are_kept(tmp_path, kind, values, dtype):
    pickled = whole(mapping({"w": tensor((2,), (1,), 0, storage(f"torch.{kind}", count=2))}))
    value = load(write(tmp_path / "a.pt", pickled, {"0": values.tobytes()}))["w"]
    assert value.dtype == dtype
    assert value.tolist() == ([1.5, -2.0] if dtype == mx.bfloat16 else values.tolist())


def test_untyped_storage_with_a_dtype(tmp_path):
    source = storage("torch.storage.UntypedStorage", count=4)
    place = (atom(0), atom((2,)), atom((1,)), b"\x89", NO_HOOKS)
    build = call("torch._utils._rebuild_tensor_v3", source, *place, name("torch.uint16"))
    data = {"0": np.array([1, 60000], np.uint16).tobytes()}
    value = load(write(tmp_path / "a.pt", whole(mapping({"w": build})), data))["w"]
    assert (value.dtype, value.tolist()) == (mx.uint16, [1, 60000])


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_nested_state_and_other_values_are_named(tmp_path, key):
    inner = mapping({"w": tensor(), "version": atom(2)})
    outer = {key: inner, "step": atom(7), "note": atom(["x", None, 1.5, (1,)])}
    with TorchZipFile(write(tmp_path / "a.pt", whole(mapping(outer)))) as source:
        assert list(source.infos) == ["w"]
        assert source.ignored == ("step", "note", "version")


def test_ordered_dict_with_attributes_and_protocol_4(tmp_path):
    items = b"(" + atom("w") + tensor() + b"u"
    ordered = NO_HOOKS + items + mapping({"_metadata": atom({})}) + b"b"
    assert list(load(write(tmp_path / "a.pt", whole(ordered)))) == ["w"]
    stacked = atom("collections") + atom("OrderedDict") + b"\x93)R"
    modern = b"\x80\x04" + stacked + b"\x94" + items + b"."
    assert list(load(write(tmp_path / "b.pt", modern, order=None))) == ["w"]


def harmful(function, *args):
    return type("Call", (), {"__reduce__": lambda self: (function, args)})()


def stacked(module, attribute):
    return b"\x80\x04" + atom(module) + atom(attribute) + b"\x93" + group(atom("echo")) + b"R."


INNER = mapping({"w": tensor()})
CHAIN = pickle.dumps(harmful(getattr, harmful(__import__, "os"), "system"), 4)
DEEP = b"}" + b")" + b"\x85" * 300_000 + b"Ns"
BAD_PICKLES = [
    ("builtin eval", pickle.dumps(harmful(eval, "1+1"), 2), "the file asks for __builtin__.eval"),
    ("getattr chain", CHAIN, "the file asks for builtins.getattr"),
    ("torch.load", whole(call("torch.load", atom("x"))), "asks for torch.load"),
    ("whole model", whole(name("torch.nn.modules.linear.Linear")), "torch.nn.modules.linear"),
    ("stack global", stacked("posix", "system"), "asks for posix.system"),
    ("zero width", stacked("torch._utils\u200b", "_rebuild_tensor_v2"), r"torch._utils\u200b"),
    ("full width", stacked("\uff54orch", "Size"), r"\uff54orch"),
    ("surrogate", b"\x80\x04\x8c\x03\xed\xa0\x80\x8c\x01x\x93.", r"\ud800"),
    ("attribute path", stacked("collections", "OrderedDict.fromkeys"), "OrderedDict.fromkeys"),
    ("no text", b"\x80\x04" + atom(1) + atom(2) + b"\x93.", "whose name is no text"),
    ("extension", whole(b"\x82\x01"), "opcode EXT1"),
    ("inst", whole(b"(iposix\nsystem\n"), "opcode INST"),
    ("obj", whole(b"(" + name("torch.Size") + b"o"), "opcode OBJ"),
    ("newobj", whole(name("torch.Size") + b")\x81"), "opcode NEWOBJ"),
    ("text persistent id", whole(b"Pfoo\n"), "opcode PERSID"),
    ("build on tensor", whole(tensor() + atom({"storage": 1}) + b"b"), "state set on something"),
    ("call a value", whole(atom("x") + b")R"), "a call of something that is no function"),
    ("call a storage", whole(name("torch.FloatStorage") + b")R"), "a call of something"),
    ("deep key", whole(DEEP), "dictionary key of type tuple"),
    ("memo bomb", whole(b"Nr\xff\xff\xff\xff"), "no dictionary of tensors"),
    ("long string", whole(b"\x8d" + b"\xff" * 8), "damaged"),
    ("list", whole(b"]" + tensor() + b"a"), "no dictionary of tensors"),
    ("set on tensor", whole(tensor() + atom("a") + atom(1) + b"s"), "no dictionary"),
    ("no mark", whole(b"t"), "damaged"),
    ("underflow", whole(b"\x87"), "damaged"),
    ("no stop", b"\x80\x02}", "damaged"),
    ("empty", b"", "damaged"),
    ("parameter", whole(call("torch._utils._rebuild_parameter", b"N", b"N", b"N")), "parameter"),
    ("v2 arguments", whole(call("torch._utils._rebuild_tensor_v2", storage())), "unexpected arg"),
    ("dict arguments", whole(call("collections.OrderedDict", atom([]))), "OrderedDict built"),
    ("bad size", whole(call("torch.Size", atom([-1]))), "torch.Size"),
    ("pid", whole(atom("storage") + b"Q"), "persistent id"),
    ("pid type", whole(storage("torch.float32")), "storage of unknown type"),
    ("count", whole(storage(count=-1)), "impossible size"),
    ("two states", whole(mapping({"model": INNER, "state_dict": INNER})), "under both"),
    ("number as name", whole(mapping({1: tensor()})), "under the key 1"),
]
BAD_TENSORS = [
    ("no storage", tensor(source=atom("data")), "without a typed storage"),
    ("huge shape", tensor((2**31 - 1, 2**31 - 1), (0, 0)), "larger than its storage"),
    ("beyond int32", tensor((2**40,), (0,)), "impossible shape"),
    ("outside by stride", tensor((2, 3), (4, 1)), "outside its storage"),
    ("outside by offset", tensor(offset=1), "outside its storage"),
    ("negative offset", tensor(offset=-1), "storage offset"),
    ("bool offset", tensor(offset=True), "storage offset"),
    ("negative stride", tensor((2, 3), (3, -1), 2), "impossible shape or stride"),
    ("negative dim", tensor((-2, -3), (3, 1)), "impossible shape"),
    ("ranks differ", tensor((6,), (3, 1)), "impossible shape or stride"),
    ("missing storage", tensor(source=storage(key="9")), "lacks archive/data/9"),
    ("traversal", tensor(source=storage(key="../../x")), "lacks archive/data/../../x"),
    ("short storage", tensor(source=storage(count=7)), "has 24 bytes, expected 28"),
]
ROWS = BAD_PICKLES + [(row, whole(mapping({"w": body})), part) for row, body, part in BAD_TENSORS]


@pytest.mark.parametrize(("pickled", "part"), [pytest.param(*row[1:], id=row[0]) for row in ROWS])
def test_refused(tmp_path, pickled, part):
    with pytest.raises(CheckpointError) as caught:
        TorchZipFile(write(tmp_path / "a.pt", pickled))
    assert part in str(caught.value)
    assert str(caught.value).isascii() and "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_shell_command_is_named_and_not_run(tmp_path, protocol):
    trace = tmp_path / "trace"
    pickled = pickle.dumps({"w": harmful(os.system, f"touch {trace}")}, protocol)
    with pytest.raises(CheckpointError, match=rf"refused: the file asks for {os.name}\.system"):
        open_tensors(write(tmp_path / "a.bin", pickled))
    assert not trace.exists()
    pickle.loads(pickled)
    assert trace.exists()  # the file was harmful, to a reader that executes


GOOD = whole(mapping({"w": tensor()}))


def rename(path):
    """Spoil the name in front of the data, which is not the one in the directory."""
    path.write_bytes(path.read_bytes().replace(b"archive/data/0", b"archive/data/1", 1))


LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
BAD_FILES = [
    ("big endian", lambda p: write(p, GOOD, order=b"big"), "little-endian"),
    ("deflated", lambda p: write(p, GOOD, compression=zipfile.ZIP_DEFLATED), "compressed"),
    ("truncated", lambda p: os.truncate(write(p, GOOD), 300), "truncated"),
    ("empty storage", lambda p: write(p, GOOD, {"0": b""}), "has 0 bytes, expected 24"),
    ("legacy", lambda p: p.write_bytes(LEGACY), "_use_new_zipfile_serialization=True"),
    ("renamed", lambda p: rename(write(p, GOOD)), "entry archive/data/0 is damaged"),
    ("text", lambda p: p.write_text("hello"), "not a PyTorch zip file"),
    ("empty", lambda p: p.write_bytes(b""), "the file is empty"),
    ("pointer", lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\n"), "git-lfs"),
    ("missing", lambda p: None, "cannot be read"),
]


@pytest.mark.parametrize(("make", "part"), [pytest.param(*r[1:], id=r[0]) for r in BAD_FILES])
def test_damaged_files(tmp_path, make, part):
    path = tmp_path / "a.pt"
    make(path)
    with pytest.raises(CheckpointError) as caught:
        TorchZipFile(path)
    assert part in str(caught.value)


def test_absurd_pickle_size_and_same_names(tmp_path, monkeypatch):
    path = write(tmp_path / "a.pt", GOOD)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning):
        archive.writestr("archive/data/0", b"other")
    with pytest.raises(CheckpointError, match="same name"):
        TorchZipFile(path)
    monkeypatch.setattr(torch_zip, "MAX_PICKLE", 20)
    with pytest.raises(CheckpointError, match=r"data\.pkl has \d+ bytes, more than 20"):
        TorchZipFile(write(tmp_path / "b.pt", GOOD))


def test_random_damage_loads_or_raises_checkpoint_error(tmp_path):
    dice = random.Random(5)
    good = write(tmp_path / "good.bin", GOOD).read_bytes()
    path, refused = tmp_path / "bad.bin", 0
    for _ in range(300):
        damaged = bytearray(good)
        damaged[dice.randrange(len(good))] = dice.randrange(256)
        length = dice.randrange(len(good)) if dice.random() < 0.3 else len(good)
        path.write_bytes(damaged[:length])
        try:
            load(path)
        except CheckpointError:
            refused += 1
    assert 100 < refused < 300


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_random_pickles_never_raise_anything_but_value_error():
    dice = random.Random(6)
    for _ in range(2000):
        damaged = bytearray(GOOD)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(GOOD))] = dice.randrange(256)
        with contextlib.suppress(ValueError):
            read_pickle(bytes(damaged))
