"""The server that every client here talks to."""

from tests.server.conftest import real_server

__all__ = ["real_server"]
