"""Frames between an engine and a stage, each with a keyed hash: nobody without the key can add, change, repeat or
reorder one. They are not encrypted.

Both sides first send their version of this protocol and 32 random bytes. From both sides' bytes and the key follows a
key for each direction. A frame is its length (4 bytes), HMAC-SHA-256 of its number, its length and its content, and its
content.
"""

import hmac
import secrets
import socket
import struct
import threading
from contextlib import suppress

_GREETING = b"pellucid stages 1\n"
_NONCE_BYTES = 32
_HEADER = struct.Struct(">I32s")
_PREFIX = struct.Struct(">QI")
# Of what comes before the other side has shown that it has the key.
MAX_FIRST_BYTES = 64 << 10
MAX_FRAME_BYTES = 1 << 30
_LONG = 64 << 10  # bytes, which are not copied to travel with their header


class WireError(ConnectionError):
    """The other side is away, or speaks otherwise."""


class Wire:
    """One end of a connection. `send` may be called from any thread, `receive` from one."""

    def __init__(self, end: socket.socket, send_key: bytes, receive_key: bytes) -> None:
        self._end = end
        self._send_key = send_key
        self._receive_key = receive_key
        self._num_sent = self._num_received = 0
        self._lock = threading.Lock()
        self._limit = MAX_FIRST_BYTES

    def send(self, content: bytes) -> None:
        """Raises `OSError` if the other side is away, and ValueError if the frame is too long."""
        if len(content) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(content)} bytes: at most {MAX_FRAME_BYTES}")
        with self._lock:
            tag = _tag(self._send_key, self._num_sent, content)
            self._num_sent += 1
            header = _HEADER.pack(len(content), tag)
            if len(content) < _LONG:
                self._end.sendall(header + content)
            else:
                self._end.sendall(header)
                self._end.sendall(content)

    def receive(self) -> bytearray:
        """The next frame.

        Raises:
            WireError: it was not made with the key, is too long, or the other side has ended.
            OSError: nothing comes, or the connection is broken.
        """
        length, tag = _HEADER.unpack(_read(self._end, _HEADER.size))
        if length > self._limit:
            raise WireError(f"a frame of {length} bytes: at most {self._limit}")
        content = _read(self._end, length)
        if not hmac.compare_digest(tag, _tag(self._receive_key, self._num_received, content)):
            raise WireError("a frame that was not made with this key: both sides need the same one")
        self._num_received += 1
        self._limit = MAX_FRAME_BYTES
        return content

    @property
    def silence_seconds(self) -> float:
        """After which `receive` raises TimeoutError."""
        return self._end.gettimeout() or 0.0

    def limit_silence(self, seconds: float) -> None:
        """Sets `silence_seconds`, for the calls that begin later. From any thread."""
        self._end.settimeout(seconds)

    def close(self) -> None:
        """Ends the connection; calls on other threads raise."""
        with suppress(OSError):  # the other side was faster
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def shake_hands(end: socket.socket, key: bytes, *, is_engine: bool) -> Wire:
    """Begins a connection.

    Args:
        key: the secret of all processes of an engine.

    Raises:
        WireError: the other side speaks another protocol.
        OSError: the connection is broken.
    """
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    own = secrets.token_bytes(_NONCE_BYTES)
    end.sendall(_GREETING + own)
    if _read(end, len(_GREETING)) != _GREETING:
        raise WireError("the other side is no pellucid, or one of another version")
    others = _read(end, _NONCE_BYTES)
    nonces = own + others if is_engine else others + own
    of_engine = hmac.digest(key, b"engine" + nonces, "sha256")
    of_stage = hmac.digest(key, b"stage" + nonces, "sha256")
    return Wire(end, of_engine, of_stage) if is_engine else Wire(end, of_stage, of_engine)


def _tag(key: bytes, number: int, content: bytes | bytearray) -> bytes:
    made = hmac.new(key, _PREFIX.pack(number, len(content)), "sha256")
    made.update(content)
    return made.digest()


def _read(end: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view = memoryview(content)
    while view:
        num_read = end.recv_into(view)
        if not num_read:
            raise WireError("the other side has ended the connection")
        view = view[num_read:]
    return content
