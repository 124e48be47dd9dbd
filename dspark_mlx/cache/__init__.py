"""The target's cache between rounds: it grows by a block, then keeps what was accepted."""

from .adapter import Replay, TargetCache
from .kinds import handle
from .quantization import KVQuantization
from .snapshot import CacheSnapshot

__all__ = ["CacheSnapshot", "KVQuantization", "Replay", "TargetCache", "handle"]
