"""Ollama's API on the wire. No meaning."""

import msgspec


class OllamaErrorResponse(msgspec.Struct, kw_only=True):
    """Every refusal and failure."""

    error: str
