"""The seal of a process: an audit hook that refuses and records every address but the loopback's.

Python announces every use of a socket to audit hooks, from whichever library it comes. What torch's C++ does by
itself is not announced: it opens sockets for process groups only.
"""

import errno
import ipaddress
import sys

ADDRESSED = {"socket.connect": 1, "socket.bind": 1, "socket.sendto": 1, "socket.sendmsg": 1, "socket.getnameinfo": 0}
"""Events with a socket's address, and which of their arguments it is."""
NAMED = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}
"""Events whose first argument is the name of a host."""

asked: list[str] = []


def close() -> None:
    """From here on this process keeps to itself; no hook can be taken away again."""
    sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple) -> None:
    if event in ADDRESSED:
        address = arguments[ADDRESSED[event]]
        # A local socket's address is a path, a connected one's None; "" in a tuple is every interface, so no loopback.
        is_near = not isinstance(address, tuple) or _is_loopback(address[0])
        told = address
    elif event in NAMED:
        # Without a name nothing is looked up; what comes of it is judged when it is bound or connected to.
        told = arguments[0]
        is_near = not told or told in ("localhost", b"localhost") or _is_loopback(told)
    else:
        return
    if not is_near:
        asked.append(f"{event} {told}")
        raise PermissionError(errno.EACCES, asked[-1])


def _is_loopback(host: str | bytes | int) -> bool:
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host).is_loopback
    except ValueError:
        return False
