"""Folders and files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import re
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

    On any error the sibling, and every parent made for it, is removed, and `target` is as it
    was. With `overwrite` the old
    folder is moved aside until the new one stands. What a killed process left is cleared.
    """
    target = target.absolute()
    _clear_leftovers(target)
    check_free(target, overwrite)
    made = [parent for parent in target.parents if not parent.exists()]
    work = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name}.partial-{os.getpid()}-"
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
        yield work
        _sync(work)
        _swap(work, target)
    except BaseException:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and its folder where there is none; an old one stays until it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    work = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        work.chmod(0o666 & ~_umask())
        work.replace(path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise


def _swap(work: Path, target: Path) -> None:
    work.chmod(0o777 & ~_umask())
    if not target.exists():
        work.rename(target)
        return
    aside = target.with_name(f".{target.name}.old-{os.getpid()}-")
    target.rename(aside)
    try:
        work.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _clear_leftovers(target: Path) -> None:
    """Remove siblings of dead processes; put back a folder that one had moved aside."""
    if not target.parent.is_dir():
        return
    pattern = re.compile(rf"\.{re.escape(target.name)}\.(partial|old)-(\d+)-")
    for path in target.parent.iterdir():
        found = pattern.match(path.name)
        if not found or _alive(int(found[2])):
            continue
        if found[1] == "old" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


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
