"""Where this package keeps its files; nothing else decides on a location."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HOME_VARIABLE = "DSPARK_MLX_HOME"


def home() -> Path:
    """The user's data folder: `DSPARK_MLX_HOME`, or the platform's usual place (not created)."""
    if override := os.environ.get(HOME_VARIABLE):
        return Path(override).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dspark-mlx"
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "dspark-mlx"


def models() -> Path:
    """Folder of target models that this package built itself."""
    return home() / "models"


def downloads() -> Path:
    """Folder where files are fetched to, and where a user can put one fetched by hand."""
    return home() / "downloads"


def tuning() -> Path:
    """Folder of what was measured and fitted on this machine."""
    return home() / "tuning"


def assets() -> Path:
    """Data shipped inside the package (read-only)."""
    return Path(__file__).parent / "assets"
