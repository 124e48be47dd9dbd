"""What a round costs: measured curves, and prices that real rounds correct."""

from __future__ import annotations

from .curve import CostCurve, bucket_of
from .live import Costs, Prices

__all__ = ["CostCurve", "Costs", "Prices", "bucket_of"]
