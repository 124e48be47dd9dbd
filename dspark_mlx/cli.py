"""The command line: a table of commands, each imported only when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from ._version import __version__
from .errors import UserError

# command -> (module with main(argv) -> exit code, what it does)
COMMANDS = {
    "generate": ("dspark_mlx.commands.generate", "answer one prompt and show what speculation did"),
    "convert": ("dspark_mlx.convert.cli", "convert a PyTorch drafter checkpoint to MLX"),
    "models": ("dspark_mlx.commands.models", "list the known models and what is on disk"),
}
INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run one command; user errors are one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"dspark-mlx {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        print(
            f"dspark-mlx: error: no command {argv[0]!r}; commands: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    return _run(argv[0], argv[1:])


def usage() -> str:
    """The text of --help."""
    lines = ["usage: dspark-mlx COMMAND ...", "", "commands:"]
    lines += [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", "`dspark-mlx COMMAND --help` shows a command's options; --version the version."]
    return "\n".join(lines)


def _run(name: str, argv: list[str]) -> int:
    try:
        return int(import_module(COMMANDS[name][0]).main(argv))
    except UserError as error:
        message = " ".join(str(error).split())
        print(f"dspark-mlx {name}: error: {message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader went away (as in `| head`); Python must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
