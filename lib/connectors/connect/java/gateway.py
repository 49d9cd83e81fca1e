"""The client of py4j for a child JVM."""

from __future__ import annotations

from typing import Any, Final

from py4j.java_gateway import GatewayClient
from py4j.protocol import ERROR, REFERENCE_TYPE, get_return_value

_THROWN: Final = f"{ERROR}{REFERENCE_TYPE}"


class ChildJvmClient(GatewayClient):  # type: ignore[misc]
    """Raises what Java throws before py4j's own place for that, where PySpark has a handler for all JVMs of the process.

    That handler looks for the exception in Spark's JVM, where its id is that of another object, or of none.
    """

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        answer = super().send_command(command, retry, binary)
        if isinstance(answer, str) and answer.startswith(_THROWN):
            get_return_value(answer, self)
        return answer
