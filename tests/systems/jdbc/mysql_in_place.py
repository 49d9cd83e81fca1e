"""A plugin of pytest: tests that ask for a MariaDB get a MySQL."""

from connectors.testing import servers

servers.MariaDbServer = servers.MySqlServer  # type: ignore[misc,assignment]
