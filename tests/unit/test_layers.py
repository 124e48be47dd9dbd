"""The layout kept true by machine: layers, lint, size budget, and no private parts of mlx."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ..tools import ROOT

PACKAGES = ("dspark_mlx", "convert", "tui")
MOST_LINES, MOST_FUNCTION_LINES = 300, 60


def sources(*folders):
    """Python files, each once: two folders of the package are links to folders beside it."""
    found = {path.resolve() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    return sorted(found)


def tool(name, *argv):
    path = Path(sys.executable).with_name(name)
    path = path if path.exists() else shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [str(path), *argv], cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_keep_to_the_layers():
    tool("lint-imports", "--no-cache")


def test_ruff_has_no_complaint():
    tool(
        "ruff",
        "check",
        "--no-cache",
        *(name for name in (*PACKAGES, "tests") if (ROOT / name).exists()),
    )


def test_there_is_something_to_look_at():
    names = {str(path.relative_to(ROOT)) for path in sources(*PACKAGES)}
    assert {"dspark_mlx/run.py", "dspark_mlx/heads/markov.py", "convert/write.py"} <= names


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_files_keep_to_the_size_budget(folder):
    sizes = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in sources(folder)}
    assert {str(p): n for p, n in sizes.items() if n > MOST_LINES} == {}


def test_functions_keep_to_the_size_budget():
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kinds) and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    }
    assert long == {}


def private_names(tree):
    """Underscored names that a module takes from mlx or mlx_lm, by import or by attribute."""
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] in ("mlx", "mlx_lm"):
                    aliases.add(name.asname or name.name.split(".")[0])
                    yield from (p for p in name.name.split(".") if p.startswith("_"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
            "mlx",
            "mlx_lm",
        ):
            aliases |= {name.asname or name.name for name in node.names}
            parts = [*node.module.split("."), *(name.name for name in node.names)]
            yield from (p for p in parts if p.startswith("_"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in aliases:
                yield node.attr


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def test_nothing_private_of_mlx_is_used():
    found = {
        str(path.relative_to(ROOT)): names
        for path in sources(*PACKAGES)
        if (names := list(private_names(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


def test_the_search_for_private_names_finds_them():
    bad = "import mlx._x\nfrom mlx_lm.utils import _a\nimport mlx.nn as nn\nnn.layers._b()\nself._c"
    assert sorted(private_names(ast.parse(bad))) == ["_a", "_b", "_x"]
