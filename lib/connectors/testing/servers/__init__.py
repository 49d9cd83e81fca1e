"""Real servers for tests and notebooks: from package registries, on loopback, without root or docker."""

from .base import HOST, Server, Unavailable
from .connect_server import ConnectServer
from .http_service import HttpService
from .redis_server import RedisServer

__all__ = ["HOST", "ConnectServer", "HttpService", "RedisServer", "Server", "Unavailable"]
