"""The command line: a table of commands, each imported only when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from ._version import __version__
from .errors import UserError
from .summary import printable

# command -> (module with main(argv) -> exit code, what it does)
COMMANDS = {
    "generate": ("dspark_mlx.commands.generate", "answer one prompt and show what speculation did"),
    "convert": ("dspark_mlx.convert.cli", "convert a PyTorch drafter checkpoint to MLX"),
    "inspect": ("dspark_mlx.commands.inspect", "show what a drafter is, and what target it needs"),
    "eval": ("dspark_mlx.commands.eval", "measure acceptance on data sets, with a report"),
    "check": ("dspark_mlx.commands.check", "prove that the output is the target's own"),
    "bench": ("dspark_mlx.commands.bench", "measure speed against plain decoding, interleaved"),
    "models": ("dspark_mlx.commands.models", "list the known models and what is on disk"),
}
INTERRUPTED = 130
MOST = 1000  # characters of an error; a file's contents may be quoted in it


def main(argv: list[str] | None = None) -> int:
    """Run one command; user errors are one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        code = _dispatch(argv)
        sys.stdout.flush()  # a reader that went away shows here, not at exit
        return code
    except UserError as error:
        return _refuse(argv, str(error))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # the reader went away (as in `| head`); Python must not complain at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _refuse(argv, f"the system refused: {error}")


def usage() -> str:
    """The text of --help."""
    lines = ["usage: dspark-mlx COMMAND ...", "", "commands:"]
    lines += [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
    lines += ["", "`dspark-mlx COMMAND --help` shows a command's options; --version the version."]
    return "\n".join(lines)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"dspark-mlx {__version__}")
        return 0
    if argv[0] not in COMMANDS:
        raise UserError(f"no command {argv[0]!r}; commands: {', '.join(COMMANDS)}")
    return int(import_module(COMMANDS[argv[0]][0]).main(argv[1:]))


def _refuse(argv: list[str], message: str) -> int:
    line = " ".join(printable(message).split())
    line = line if len(line) <= MOST else line[:MOST] + " ..."
    command = " ".join(["dspark-mlx", *(a for a in argv[:1] if a in COMMANDS)])
    print(f"{command}: error: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
