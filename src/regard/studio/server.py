"""Serving the studio on the loopback interface, and on no other."""

import socket
import threading
import webbrowser

import uvicorn

from regard.errors import RegardError
from regard.studio.app import build
from regard.studio.connections import Connection
from regard.studio.limits import REQUEST_SECONDS
from regard.studio.models.shelf import Shelf

ADDRESS = "127.0.0.1"
BACKLOG = 64
LAST_ANSWERS = 2  # seconds for requests that are under way when the studio is stopped


def bind(port: int) -> socket.socket:
    """A listening socket on the loopback address; port 0 is any that is free."""
    if not 0 <= port <= 65535:
        raise RegardError(
            "port", got=str(port), needed="0 (any that is free) to 65535", repair="Leave --port out for a free one."
        )
    # Named as TCP, it is one whose small packets asyncio sends at once; otherwise the last of an answer waits 40 ms
    # for the browser's delayed acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
        listener.listen(BACKLOG)
    except OSError as refusal:
        listener.close()
        raise RegardError(
            "port",
            got=f"{port} ({refusal.strerror})",
            needed="a port that is free and that you may use",
            repair="Leave --port out for a free one, or stop what uses it.",
        ) from None
    return listener


def server_of(shelf: Shelf, port: int) -> uvicorn.Server:
    """The server of a studio; `port` is the one that its listening socket is bound to."""
    return uvicorn.Server(
        uvicorn.Config(
            build(shelf, port),
            http=Connection,
            log_level="error",  # errors of clients are answered over HTTP and not printed
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=REQUEST_SECONDS,
            timeout_graceful_shutdown=LAST_ANSWERS,
        )
    )


def serve(shelf: Shelf, listener: socket.socket, *, browser: bool) -> None:
    """Serve until the process is told to stop; print the address, and open it where a browser is wanted."""
    port = listener.getsockname()[1]
    address = f"http://{ADDRESS}:{port}/"
    print(f"The studio is at {address} (this machine only). Ctrl-C stops it.", flush=True)
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    try:
        server_of(shelf, port).run(sockets=[listener])
    except KeyboardInterrupt:
        pass  # the way to stop it, which uvicorn hands on when all is closed
    finally:
        shelf.stop()
        listener.close()
