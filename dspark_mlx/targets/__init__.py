"""Targets: mlx-lm models with tapped layers."""
