"""Whether confidences mean what they say: metrics, temperatures that make them, their record."""

from __future__ import annotations

from .metrics import PositionMetrics, position_metrics, weighted
from .record import Calibration, Sample, acceptance_of
from .sts import fit_temperatures

__all__ = [
    "Calibration",
    "PositionMetrics",
    "Sample",
    "acceptance_of",
    "fit_temperatures",
    "position_metrics",
    "weighted",
]
