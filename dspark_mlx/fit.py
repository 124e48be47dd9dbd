"""Does a drafter fit a target? Shapes and token strings are compared; no weights are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .config import DrafterConfig
from .errors import CheckpointError, PairError

Strings = Mapping[int, str]  # token id -> the token's string in its tokenizer
SAMPLE = 256  # token strings that a converted drafter's config keeps
RECORD = "tokens"  # under which key of its `source`


class Shape(Protocol):
    """What has to be known of a target to say whether a drafter fits."""

    @property
    def name(self) -> str:
        """What to call it in an error."""

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""

    @property
    def vocab_size(self) -> int:
        """Rows of the output head."""

    @property
    def depth(self) -> int:
        """Number of decoder layers."""


@dataclass(frozen=True)
class ConfigShape:
    """A target's shape by its config.json alone, no weights loaded."""

    name: str
    hidden_size: int
    vocab_size: int
    depth: int

    @classmethod
    def of(cls, config: dict[str, Any], name: str) -> ConfigShape:
        """Read a target's config; CheckpointError names a size that is not there."""
        text = config.get("text_config") or config
        sizes = {}
        for key in ("hidden_size", "vocab_size", "num_hidden_layers"):
            value = text.get(key, config.get(key))
            if type(value) is not int:
                raise CheckpointError(f"{name}: config.json has no {key}; is this a target?")
            sizes[key] = value
        return cls(name, sizes["hidden_size"], sizes["vocab_size"], sizes["num_hidden_layers"])


def check_fit(
    target: Shape,
    drafter: DrafterConfig,
    name: str = "the drafter",
    *,
    tokens: Callable[[], Strings | None],
    drafted: Strings | None = None,
) -> None:
    """Raise PairError naming everything in which target and drafter disagree.

    `tokens` gives the target's token strings (None: unknown); it is called only where they
    decide: vocabularies of two sizes fit when the rows that differ are padding, behind every
    token. `drafted` are the drafter's own strings; without them, those that its config keeps.
    """
    name = drafter.source.get("name", name) if name == "the drafter" else name
    wrong = [
        f"{what} {theirs} in the target, {ours} in the drafter"
        for what, theirs, ours in (
            ("hidden size", target.hidden_size, drafter.hidden_size),
            ("number of target layers", target.depth, drafter.num_target_layers),
        )
        if ours not in (theirs, None)
    ]
    deepest = max(drafter.target_layer_ids)
    if deepest >= target.depth:
        wrong.append(f"tapped layer {deepest} of a target with {target.depth} layers")
    wrong += _vocabulary(target, drafter, tokens, recorded(drafter) if drafted is None else drafted)
    mask = drafter.mask_token_id
    if mask is not None and drafter.embeddings == "target" and mask >= target.vocab_size:
        wrong.append(
            f"mask token {mask} beyond the target's embedding of {target.vocab_size} rows, which "
            "this drafter borrows"
        )
    if wrong:
        raise PairError(f"{target.name} and {name} do not fit: {'; '.join(wrong)}")


def _vocabulary(
    target: Shape, drafter: DrafterConfig, tokens: Callable[[], Strings | None], ours: Strings
) -> list[str]:
    """What is wrong between the two vocabularies."""
    differ = target.vocab_size != drafter.vocab_size
    theirs = tokens() if differ or ours else None
    wrong = []
    if differ:
        shared = min(target.vocab_size, drafter.vocab_size)
        used = max(theirs) + 1 if theirs else None
        if used is None or used > shared:
            why = f"the tokenizer has {used} tokens" if used else "no tokenizer tells about padding"
            wrong.append(
                f"vocabulary {target.vocab_size} in the target, {drafter.vocab_size} in the "
                f"drafter ({why})"
            )
    if theirs and (found := disagreement(theirs, ours)) is not None:
        wrong.append(found)
    return wrong


def disagreement(theirs: Strings, ours: Strings) -> str | None:
    """In which tokens a target's and a drafter's tokenizer differ; None where they agree.

    Tokens that only one of the two has are no disagreement: tails differ in what was added.
    """
    odd = [i for i in sorted(ours) if i in theirs and theirs[i] != ours[i]]
    if not odd:
        return None
    more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
    first = odd[0]
    return f"token {first} is {theirs[first]!r} in the target, {ours[first]!r} in the drafter{more}"


def tokenizer_strings(tokenizer: Any) -> Strings | None:
    """Token strings of a loaded tokenizer, None where it does not tell them."""
    vocabulary = getattr(tokenizer, "get_vocab", None)
    return None if vocabulary is None else {i: s for s, i in vocabulary().items()}


def folder_strings(folder: Path) -> Strings | None:
    """Token strings by a folder's tokenizer.json; None where it has none.

    Raises CheckpointError for a file that is no such tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        listed = content["model"]["vocab"]
        if isinstance(listed, dict):
            strings = {int(i): str(s) for s, i in listed.items()}
        else:  # unigram: [string, score] in the order of ids
            strings = {i: str(entry[0]) for i, entry in enumerate(listed)}
        added = content.get("added_tokens") or []
        return strings | {int(token["id"]): str(token["content"]) for token in added}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no readable tokenizer: {error!r}"[:300]) from error


def sample(strings: Strings) -> dict[str, str]:
    """Some of the strings, evenly spread, as a converted config keeps them."""
    ids = sorted(strings)
    step = max(len(ids) // SAMPLE, 1)
    return {str(i): strings[i] for i in ids[::step]}


def recorded(drafter: DrafterConfig) -> Strings:
    """The strings that a converted drafter's config keeps; empty where it keeps none."""
    kept = drafter.source.get(RECORD)
    if not isinstance(kept, Mapping):
        return {}
    return {int(i): s for i, s in kept.items() if str(i).isdecimal() and isinstance(s, str)}
