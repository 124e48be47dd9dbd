"""Measuring a pair: acceptance (`evaluate`), losslessness (`lossless`), speed (`benchmark`).

Everything here reads the public event stream; the decode loop knows nothing of it.
"""
