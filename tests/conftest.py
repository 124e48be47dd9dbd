"""Fixtures that several test files share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

# the models here are tiny, and test processes run side by side: one thread each
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from dspark_mlx import Pair, fetch, load, paths, smollm2
from dspark_mlx.options import Options

FETCH_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests that may have to fetch the model the time for it."""
    if smollm2.is_ready():
        return
    for item in items:
        if "smollm2_folder" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(FETCH_SECONDS))


@pytest.fixture(scope="session", autouse=True)
def tuning_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests measure and fit does not go among the user's own."""
    folder = tmp_path_factory.mktemp("tuning")
    paths.tuning = lambda: folder
    return folder


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The real default target, built once into the data folder in use."""
    if fetch.offline_by() == "DSPARK_MLX_OFFLINE" and not smollm2.is_ready():
        pytest.skip(f"DSPARK_MLX_OFFLINE is set and {smollm2.folder()} is not built")
    return smollm2.ensure()


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Folder of the small checkpoints and golden vectors made with the PyTorch reference."""
    return Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def pair_of(fixtures: Path) -> Callable[[str | bool], Pair]:
    """The trained fixture target with the named drafter (False: none), loaded once each."""

    @functools.cache
    def load_pair(drafter: str | bool) -> Pair:
        chosen = fixtures / drafter if isinstance(drafter, str) else drafter
        family = "gemma4" if isinstance(drafter, str) and "gemma4" in drafter else "qwen3"
        return load(fixtures / f"target-{family}", chosen)

    return load_pair


@pytest.fixture(autouse=True)
def whole_blocks(monkeypatch, request):
    """Tests that name no cutoff verify whole blocks: what `auto` decides follows the clock."""
    if request.module.__name__.endswith("test_auto_runs"):
        return
    of = Options.of.__func__

    def named(cls, **options):
        return of(cls, **{"cutoff": "full"} | options)

    monkeypatch.setattr(Options, "of", classmethod(named))
