"""Whether confidences mean what they say: metrics, temperatures that make them, their record."""

from __future__ import annotations

from .metrics import PositionMetrics, position_metrics, weighted
from .record import Calibration, Sample, Scale, acceptance_of
from .sts import fit_scales

__all__ = [
    "Calibration",
    "PositionMetrics",
    "Sample",
    "Scale",
    "acceptance_of",
    "fit_scales",
    "position_metrics",
    "weighted",
]
