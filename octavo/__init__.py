"""Octavo: LLM inference and serving with bitwise-invariant output."""
