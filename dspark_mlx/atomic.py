"""Folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .errors import UserError


def check_free(target: Path, overwrite: bool = False) -> None:
    """Refuse a destination that is a file, or a non-empty folder unless `overwrite`."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UserError(f"{target} exists and is not a folder; choose another destination")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise UserError(f"{target} exists and is not empty; choose another folder or --overwrite")


@contextlib.contextmanager
def new_folder(target: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling of `target`; on success it takes `target`'s place.

    On any error the sibling is removed and `target` is as it was. With `overwrite`
    the old folder is moved aside until the new one stands.
    """
    check_free(target, overwrite)
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        yield work
        _sync(work)
        _swap(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _swap(work: Path, target: Path) -> None:
    work.chmod(0o777 & ~_umask())
    if not target.exists():
        work.rename(target)
        return
    aside = target.with_name(f".{target.name}.old-{os.getpid()}")
    target.rename(aside)
    try:
        work.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Push file contents to the disk, so that a full disk shows before the rename."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
