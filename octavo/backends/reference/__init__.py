"""The NumPy backend: the meaning of every op, and the fallback where no compiler exists."""
