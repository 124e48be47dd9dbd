"""`python -m dspark_mlx`."""

import sys

from .cli import main

sys.exit(main())
