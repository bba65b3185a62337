"""The description of the API for programs (/openapi.json) and for people (/docs)."""
