"""A name, hub id or folder becomes a local folder; the hub's own cache and bars are used."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import list_repo_files, snapshot_download
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from .errors import CheckpointError, FetchError
from .registry import MODELS, Entry, Progress, entry_of

TARGET_FILES = ("*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja")
DRAFTER_FILES = ("*.json", "*.safetensors", "*.bin", "*.pt")  # GGUF: see _gguf_of
GGUF = ".gguf"


def target_folder(name: str, progress: Progress | None = None) -> Path:
    """Local folder of a target: a table name, a folder, or a hub id."""
    entry = MODELS.get(name)
    if entry and entry.built_in_target:
        return entry.built_in_target(progress)
    return _folder(entry.target if entry else name, TARGET_FILES)


def drafter_folder(name: str) -> Path:
    """Local folder (or file) of a drafter: a table name, a folder, or a hub id.

    A hub id may go on to one GGUF file: owner/name/file.gguf.
    """
    if entry := MODELS.get(name):
        return table_drafter(entry)
    owner, _, rest = name.partition("/")
    repo, _, file = rest.partition("/")
    if file.endswith(GGUF) and owner.strip(".~") and repo and not _existing(name):
        return _hub_file(f"{owner}/{repo}", file)
    return _folder(name, DRAFTER_FILES)


def table_drafter(entry: Entry) -> Path:
    """Local folder of the drafter that an entry of the table names."""
    return entry.built_in_drafter or _folder(entry.drafter, DRAFTER_FILES)


def default_drafter(target: str) -> Path:
    """The table's drafter for a target; CheckpointError when the table has none."""
    entry = entry_of(target)
    if entry is None:
        raise CheckpointError(
            f"no drafter is known for {target}; name one (--drafter, drafter=) or decode without "
            f"(--plain, drafter=False); targets with one: {', '.join(MODELS)}"
        )
    return table_drafter(entry)


def cached(repo: str) -> Path | None:
    """Folder of a repository in the hub cache, or None; never asks the network."""
    try:
        return Path(snapshot_download(repo, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def complete(folder: Path) -> bool:
    """Whether a folder has a config and all its weights: a broken-off download has not.

    One GGUF file alone is both.
    """
    if not (folder / "config.json").exists():
        return len(list(folder.glob(f"*{GGUF}"))) == 1
    if (folder / "model.safetensors").exists():
        return True
    indexes = list(folder.glob("*.index.json"))
    if indexes:
        return any(_has_shards(index) for index in indexes)
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "*.bin", "*.pt"))


def _has_shards(index: Path) -> bool:
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return all(isinstance(name, str) and (index.parent / name).exists() for name in names)


def _folder(name: str, patterns: tuple[str, ...]) -> Path:
    if path := _existing(name):
        return path
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        shown = name if len(name) <= 200 else name[:200] + "..."
        raise CheckpointError(
            f"{shown!r} is neither a folder nor a hub id (owner/name) nor a known name "
            f"({', '.join(MODELS)})"
        )
    return _snapshot(name, patterns)


def _existing(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except PermissionError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror}") from error
    except (OSError, RuntimeError, ValueError):  # too long for a path, or an unknown ~user
        return None


def _hub_file(repo: str, file: str) -> Path:
    """One file of a repository."""
    path = _snapshot(repo, (file,), file) / file
    if not path.is_file():
        raise FetchError(f"{repo} has no file {file} (or it is not in the hub cache)")
    return path


def _snapshot(repo: str, patterns: tuple[str, ...], file: str | None = None) -> Path:
    """The hub cache first, without any network; then the hub itself."""
    try:
        found = Path(snapshot_download(repo, allow_patterns=list(patterns), local_files_only=True))
        whole = complete(found) if file is None else (found / file).is_file()
        if whole or HF_HUB_OFFLINE:
            return found
    except LocalEntryNotFoundError as error:
        if HF_HUB_OFFLINE:
            raise FetchError(
                f"{repo} is not in the hub cache and HF_HUB_OFFLINE is set; fetch it once with "
                f"`hf download {repo}` while online"
            ) from error
    except HFValidationError as error:
        raise CheckpointError(f"{repo!r} is not a valid hub id: {error}") from error
    return _fetched(repo, patterns)


def _fetched(repo: str, patterns: tuple[str, ...]) -> Path:
    try:
        folder = Path(snapshot_download(repo, allow_patterns=list(patterns)))
        if patterns == DRAFTER_FILES and not (folder / "config.json").exists():
            folder = _gguf_of(repo) or folder
        return folder
    except GatedRepoError as error:
        raise FetchError(
            f"{repo} asks for a login; accept its terms on the hub, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise FetchError(f"the hub has no repository {repo} (or it is private)") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FetchError(
            f"could not fetch {repo} from the hub ({reason}); check the network, or give a folder"
        ) from error


def _gguf_of(repo: str) -> Path | None:
    """The one GGUF file of a repository that has no config; None where it has none.

    Of several, in as many precisions, nobody wants all: the user has to choose.
    """
    files = [name for name in list_repo_files(repo) if name.endswith(GGUF)]
    if len(files) > 1:
        raise CheckpointError(
            f"{repo} has several GGUF files: {', '.join(files)}; name one ({repo}/{files[0]})"
        )
    return Path(snapshot_download(repo, allow_patterns=files)) / files[0] if files else None
