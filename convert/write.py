"""The conversion: read, check, drop copies, cast, quantize, write, and read back to compare."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dspark_mlx import hub
from dspark_mlx.atomic import check_free, new_folder
from dspark_mlx.checkpoints import DrafterSource, open_drafter
from dspark_mlx.config import DrafterConfig
from dspark_mlx.convert.corpus import Corpus, Progress
from dspark_mlx.convert.provenance import provenance
from dspark_mlx.convert.result import Conversion, bytes_per_round, note_origins
from dspark_mlx.convert.vocabulary import most_useful, reduce_vocabulary
from dspark_mlx.drafters.packing import bits_by_part, part_of, quantize_drafter
from dspark_mlx.drafters.weights import (
    check_draft_ids,
    check_finite,
    check_tensors,
    empty_drafter,
    parameter_shapes,
)
from dspark_mlx.errors import CheckpointError, OptionError, PairError, UserError
from dspark_mlx.fit import RECORD, check_fit, folder_strings, sample
from dspark_mlx.loading import DTYPES, load_target, target_strings
from dspark_mlx.sharing import find_copies
from dspark_mlx.targets.base import Target

WEIGHTS = "model.safetensors"


def convert(
    source: str | Path,
    output: str | Path,
    *,
    target: str | Path | None = None,
    bits: int | Mapping[str, int | None] | None = None,
    group_size: int = 64,
    dtype: str | None = None,
    share_embeddings: bool = False,
    draft_vocab: int | None = None,
    corpus: Corpus | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Convert a drafter (hub id, table name or folder) into the folder `output`.

    `target` (the same kinds of name) allows dropping copies of its embedding and head, where
    they are equal; `share_embeddings` drops them also where they are not. `bits` (4 or 8, or
    {part: 4, 8 or None}, see `drafters.packing`) quantizes with `group_size`; `dtype` casts what
    stays dense. `draft_vocab` keeps so many rows of head and Markov output table, the most useful
    by counts over `corpus` (None: the built-in one). Raises a UserError for anything that is
    wrong with source or destination; `output` appears whole or not at all.
    """
    _check_options(bits, dtype, target, share_embeddings, draft_vocab)
    output = _destination(output, overwrite)
    found = open_drafter(hub.drafter_folder(str(source)))
    _keep_apart(output, found.folder, "the source")
    with found.tensors:
        if found.converted:
            raise CheckpointError(f"{found.folder} is already converted; load it as it is")
        result = Conversion(output, found.packaging, found.config)
        weights_of_source = _read(found, result)
        weights, config = weights_of_source, found.config
    strings = folder_strings(found.folder)
    if target is not None:
        holder, folder = _target(target, output)
        theirs = target_strings(folder)
        check_fit(holder, config, str(source), tokens=lambda: theirs, drafted=strings)
        strings = strings or theirs
        if draft_vocab is not None:
            shared = min(config.vocab_size, holder.vocab_size)
            ids = most_useful(folder, shared, draft_vocab, corpus or Corpus(), progress)
            weights, config = reduce_vocabulary(weights, config, ids, holder)
        weights, config = _drop_copies(weights, config, holder, share_embeddings, result)
    drafter = empty_drafter(config)
    drafter.load_weights(list(weights.items()))
    if dtype is not None:
        drafter.set_dtype(DTYPES[dtype])
        check_finite(dict(tree_flatten(drafter.parameters())), f"{found.folder} as {dtype}")
    if bits is not None:
        config = _quantize(drafter, config, bits, group_size, result)
    result.round_bytes = (
        bytes_per_round(weights_of_source, found.config),
        bytes_per_round(dict(tree_flatten(drafter.parameters())), config),
    )
    origin = provenance(found, str(source)) | ({RECORD: sample(strings)} if strings else {})
    result.config = dataclasses.replace(config, dtype=_dtype_of(drafter), source=origin)
    _write(drafter, overwrite, result)
    return result


def _check_options(
    bits: int | Mapping[str, int | None] | None,
    dtype: str | None,
    target: str | Path | None,
    share: bool,
    draft_vocab: int | None,
) -> None:
    bits_by_part(bits)
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if share and target is None:
        raise OptionError("sharing embeddings needs the target they are taken from (--target)")
    if draft_vocab is not None and target is None:
        raise OptionError("a reduced draft vocabulary needs the target's tokenizer (--target)")


def _target(name: str | Path, output: Path) -> tuple[Target, Path]:
    """The named target, its weights left on disk, and its folder."""
    folder = hub.target_folder(str(name))
    _keep_apart(output, folder, "the target")
    return load_target(folder, str(name), lazy=True), folder


def _drop_copies(
    weights: Mapping[str, mx.array],
    config: DrafterConfig,
    target: Target,
    share: bool,
    result: Conversion,
) -> tuple[dict[str, mx.array], DrafterConfig]:
    """Weights and config without the tables that the target holds; they are noted as dropped."""
    copies = find_copies(weights, target, share)
    result.dropped |= copies
    embeddings = "target" if "embed_tokens.weight" in copies else config.embeddings
    head = "target" if "lm_head.weight" in copies else config.head
    mask = config.mask_token_id
    if embeddings == "target" and mask is not None and mask >= target.vocab_size:
        raise PairError(
            f"mask token {mask} has no row in {target.name}, whose embedding has "
            f"{target.vocab_size}; keep the drafter's own (no --share-embeddings)"
        )
    kept = {name: value for name, value in weights.items() if name not in copies}
    return kept, dataclasses.replace(config, embeddings=embeddings, head=head)


def _destination(output: str | Path, overwrite: bool) -> Path:
    try:
        path = Path(output).expanduser()
        check_free(path, overwrite)
    except (OSError, RuntimeError, ValueError) as error:  # no access, or an unknown ~user
        raise UserError(f"{output} cannot be written to: {error}") from error
    _keep_apart(path, Path.cwd(), "the working folder")
    _keep_apart(path, Path.home(), "the home folder")
    return path


def _keep_apart(output: Path, other: Path, what: str) -> None:
    """Refuse a destination that would take the place of something else's folder."""
    if other.resolve().is_relative_to(output.resolve()):
        raise UserError(f"{output} is, or holds, {what} ({other}); choose another destination")


def _read(found: DrafterSource, result: Conversion) -> dict[str, mx.array]:
    """All tensors, checked by name, shape and finiteness."""
    where = str(found.folder)
    shapes = parameter_shapes(empty_drafter(found.config))
    check_tensors(shapes, found.tensors.infos, where)
    weights = {key: found.tensors.read(key) for key in found.tensors.infos}
    check_finite(weights, where)
    check_draft_ids(weights, found.config.vocab_size, where)
    note_origins(found, result)
    result.bytes_read = sum(value.nbytes for value in weights.values())
    return weights


def _quantize(
    drafter: Any,
    config: DrafterConfig,
    bits: int | Mapping[str, int | None],
    group_size: int,
    result: Conversion,
) -> DrafterConfig:
    dense = set(parameter_shapes(drafter))
    settings = quantize_drafter(drafter, bits, group_size)
    result.quantized = {part_of(path): bits for path, bits in settings["modules"].items()}
    result.unquantized = _left_dense(drafter, dense)
    return dataclasses.replace(config, quantization=settings)


def _left_dense(drafter: Any, dense: set[str]) -> list[str]:
    """Matrices that could not be quantized, for the report."""
    shapes = parameter_shapes(drafter)
    return sorted(
        name for name, shape in shapes.items()
        if name in dense and len(shape) == 2 and f"{name[:-6]}scales" not in shapes
    )  # fmt: skip


def _dtype_of(drafter: Any) -> str:
    return str(drafter.norm.weight.dtype).rpartition(".")[2]


def _write(drafter: Any, overwrite: bool, result: Conversion) -> None:
    config, output = result.config, result.output
    weights = dict(tree_flatten(drafter.parameters()))
    result.tensors = len(weights)
    result.parameters = sum(value.size for value in weights.values())
    try:
        with new_folder(output, overwrite) as folder:
            mx.save_safetensors(str(folder / WEIGHTS), weights, {"format": "mlx"})
            text = json.dumps(config.to_dict(), indent=2) + "\n"
            (folder / "config.json").write_text(text, encoding="utf-8")
            _compare(folder, config, weights)
            result.bytes_written = (folder / WEIGHTS).stat().st_size
    except (OSError, RuntimeError) as error:
        reason = str(error)
        if isinstance(error, RuntimeError):  # mlx does not say why a write failed
            reason += " (is the disk full?)"
        raise UserError(f"could not write {output}: {reason}; nothing was left behind") from error


def _compare(folder: Path, config: DrafterConfig, weights: dict[str, mx.array]) -> None:
    """Read the folder back as `load` would; every bit must be the one that was meant."""
    with open_drafter(folder).tensors as tensors:
        written = {name: tensors.read(name) for name in tensors.infos}
    same = set(written) == set(weights) and all(
        value.dtype == weights[name].dtype and bool(mx.array_equal(value, weights[name]).item())
        for name, value in written.items()
    )
    if not same or open_drafter(folder).config != config:
        raise UserError(f"{folder} does not read back as it was written; is the disk sound?")
