"""HTTP connections with deadlines: a silent or slow client is disconnected, and cannot keep others out."""

import asyncio
import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.studio.guard import HEADERS
from regard.studio.limits import MAX_CONNECTIONS, REQUEST_SECONDS, SECONDS

# A connection that was just accepted is not closed before the data that it may already have sent is read.
CLOSE_AFTER = 0.25
# More than SECONDS, so that a request that takes too long is refused with a sentence before it is cut off.
ANSWER_SECONDS = SECONDS + 5


class Connection(H11Protocol):
    """An HTTP/1.1 connection that is closed when a request or its answer takes too long.

    A request must be complete, header and body, within `REQUEST_SECONDS` of the opening of the connection or of the
    last answer. Above `MAX_CONNECTIONS` the connections that have waited longest without a complete request are closed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline, and close the oldest waiting connections if there are now too many."""
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._set_deadline()
        if len(self.connections) > MAX_CONNECTIONS:
            self.loop.call_later(CLOSE_AFTER, self._close_oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; when the request is complete, the deadline is that of its answer."""
        was_answering = self.is_answering
        super().data_received(data)
        if self.is_answering and not was_answering:
            self._set_deadline()

    def on_response_complete(self) -> None:
        """The deadline is now that of the next request."""
        super().on_response_complete()
        self._set_deadline()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP with an error sentence and the studio's security headers."""
        del msg
        body = json.dumps({"error": "This is not an HTTP request. Use the studio's own page."}).encode()
        headers = {
            **HEADERS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        start = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
        for event in (start, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def is_answering(self) -> bool:
        """Whether a complete request is being answered."""
        complete = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return complete and self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _set_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = ANSWER_SECONDS if self.is_answering else REQUEST_SECONDS
        # Not `close`, which waits until the client has read everything that was sent to it.
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _close_oldest(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, Connection) and not one.is_answering]
        waiting.sort(key=lambda one: one._deadline.when() if one._deadline is not None else 0.0)
        for connection in waiting[: max(0, len(self.connections) - MAX_CONNECTIONS)]:
            connection.transport.abort()
