"""What is known of a pair on this machine: calibrations and cost curves, kept between runs.

Each lies in a small file of its own in the data folder, under a name made of content hashes of
target and drafter, so that a renamed or moved model keeps what was measured and a changed one
does not. Curves also depend on the machine, the versions of MLX and the context length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from . import machine, paths
from .atomic import write_file
from .calibration import Calibration
from .costs import CostCurve
from .costs.curve import BUCKETS
from .errors import CheckpointError

T = TypeVar("T")


class Tuning:
    """Reads lazily and writes whole files.

    `key` names the pair by its content, precision included; it is called when first needed.
    Without one everything stays in memory.
    """

    def __init__(self, key: Callable[[], str] | None = None) -> None:
        self._key = key
        self._curves: dict[int, CostCurve] | None = None
        self._calibrations: dict[float, Calibration] | None = None
        # what runs of this process have learned, by what they were asked; see cutoff.Setting
        self.learned: dict[Any, dict[str, Any]] = {}

    @cached_property
    def folder(self) -> Path | None:
        """Where this pair's files lie, or None."""
        return None if self._key is None else paths.tuning() / self._key()

    @property
    def curves(self) -> dict[int, CostCurve]:
        """Cost curves by context bucket, for this machine and these versions."""
        if self._curves is None:
            self._curves = {}
            for low in BUCKETS:
                path = self._curve_file(low)
                if path and (body := _read(path)) is not None:
                    known = body.get("curve") if isinstance(body, dict) else None
                    self._curves[low] = CostCurve.from_dict(known, str(path))
        return self._curves

    def add_curve(self, bucket: int, curve: CostCurve, keep: bool = True) -> None:
        """Use a curve from now on and, unless `keep` is false, in later processes too.

        What was learned with the old one is forgotten. OSError where it cannot be written.
        """
        self.curves[bucket] = curve
        self.learned.clear()
        if keep and (path := self._curve_file(bucket)):
            _write(path, {"machine": machine.identity(), "curve": curve.to_dict()})

    def calibration(self, temperature: float) -> Calibration | None:
        """The fit for a decoding temperature; for a sampled one without, the nearest sampled."""
        known = self.calibrations
        if temperature in known or temperature == 0.0:
            return known.get(temperature)
        sampled = [t for t in known if t > 0]
        return known[min(sampled, key=lambda t: abs(t - temperature))] if sampled else None

    @property
    def calibrations(self) -> dict[float, Calibration]:
        """Fits by decoding temperature (0: greedy)."""
        if self._calibrations is None:
            folder = self.folder
            files = sorted(folder.glob("calibration-*.json")) if folder else []
            fits = [_parsed(path, Calibration.from_dict) for path in files]
            self._calibrations = {fit.temperature: fit for fit in fits}
        return self._calibrations

    def add_calibration(self, fit: Calibration) -> None:
        """Use a fit from now on, and in later processes. OSError where it cannot be written."""
        self.calibrations[fit.temperature] = fit
        self.learned.clear()
        if folder := self.folder:
            _write(folder / f"calibration-{fit.temperature:g}.json", fit.to_dict())

    def _curve_file(self, bucket: int) -> Path | None:
        if self.folder is None:
            return None
        digest = hashlib.sha256(machine.identity().encode()).hexdigest()[:12]
        return self.folder / f"costs-{digest}-{bucket}.json"


def _write(path: Path, body: dict[str, Any]) -> None:
    write_file(path, (json.dumps(body, indent=1) + "\n").encode())


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); delete it") from error


def _parsed(path: Path, parse: Callable[[Any, str], T]) -> T:
    return parse(_read(path), str(path))
