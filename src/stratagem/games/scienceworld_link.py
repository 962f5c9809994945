"""The connection to ScienceWorld's engine: py4j, that says at once when Java is gone.

py4j's own client logs that with a traceback, which installs a handler on the root logger, and then tries to connect
again, also for each object that is forgotten later. Imported only where py4j is installed.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import GatewayClient, GatewayParameters, JavaGateway, is_fatal_error
from py4j.protocol import Py4JError, Py4JNetworkError

__all__ = ["Gateway", "failure"]


class _Client(GatewayClient):  # type: ignore[misc]
    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:
        """Send one command and return the answer; whatever goes wrong is raised, and the connection is closed."""
        connection = self._get_connection()
        try:
            answer = connection.send_command(command)
        except BaseException:
            connection.close(reset=True)
            raise
        if is_fatal_error(answer):
            connection.close()
        else:
            self._give_back_connection(connection)
        return answer


class Gateway(JavaGateway):  # type: ignore[misc]
    """A way into one Java process."""

    def __init__(self, *, port: int, secret: str, timeout_s: float) -> None:
        """Set where it leads; connections are made as they are needed.

        Args:
            port: of the loopback interface.
            secret: what the process wants to hear first.
            timeout_s: how long one answer may take.
        """
        address = GatewayParameters(address="127.0.0.1", port=port, auth_token=secret, read_timeout=timeout_s)
        super().__init__(gateway_parameters=address)

    def _create_gateway_client(self) -> _Client:
        return _Client(gateway_parameters=self.gateway_parameters)

    def leave(self) -> None:
        """Close the connections; nothing is sent any more, not even for objects that are forgotten."""
        self._gateway_client.is_connected = False
        self._gateway_client.close()


def failure(error: BaseException) -> str | None:
    """Return what went wrong in Java in words, or None if it is no error of the connection or of Java.

    Args:
        error: what a call raised.
    """
    if isinstance(error, Py4JNetworkError):
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, TimeoutError):
            cause = cause.__context__
        return "does not answer" if cause is None else "did not answer in time"
    if isinstance(error, OSError):
        return "does not answer"
    if isinstance(error, Py4JError):
        lines = str(error).strip().splitlines()
        return f"raised {lines[1 if len(lines) > 1 else 0].lstrip(': ')}"  # the second names the exception
    return None
