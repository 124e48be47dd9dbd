"""From a PyTorch drafter checkpoint to an MLX folder that `load` reads back."""

from dspark_mlx.convert.write import Conversion, convert

__all__ = ["Conversion", "convert"]
