"""Measurements of Octavo beside other engines. Not part of the package."""
