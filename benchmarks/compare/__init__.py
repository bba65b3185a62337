"""`python -m benchmarks.compare`: Octavo and its peers, alternately, on the same files."""
