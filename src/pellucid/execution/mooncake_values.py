"""Values of a Mooncake store, whose client is a process of its own.

Within the engine's process that client would hold the GIL for a minute and a half while no master answers, open ports
on all addresses, and end the engine by its own crashes. A process can be killed at any time, and has no key.
"""

import os
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlsplit

from pellucid.execution import block_server, mooncake_process
from pellucid.execution.block_file import DamagedBlockError
from pellucid.execution.block_server import ServerAwayError
from pellucid.execution.mooncake_process import CODE, GET, HAS, PUT, REMOVE

MASTER_PORT = 50051  # unless the address names another
START_SECONDS = 5.0
# Of its environment the process gets what says how to reach a store, and nothing that is secret.
_ENVIRONMENT = "GLOG_", "LD_LIBRARY_PATH", "MC_", "MOONCAKE_"
# Mooncake's codes (ErrorCode of mooncake-store/include/types.h)
_NO_ROOM, _TOO_LONG = -200, -600
_NOT_THERE = range(-799, -699)  # missing, being written, being removed
_WORDS = {-800: "a machine with memory does not answer", -900: "the master does not answer"}


class MooncakeValues:
    """As in `ServedValues`.

    Args:
        url: mooncake://host:port, of the master.
        num_bytes: of every value.

    Raises:
        ValueError: the package is missing.
    """

    def __init__(self, url: str, num_bytes: int) -> None:
        found = find_spec("mooncake")
        if found is None or found.origin is None:
            raise ValueError(
                f"prefix_store={url!r}: needs the package mooncake-transfer-engine-non-cuda: "
                "pip install 'pellucid[mooncake]'"
            )
        self._package_folder = Path(found.origin).parents[1]
        parts = urlsplit(url)
        self.address = f"{parts.hostname}:{parts.port or MASTER_PORT}"
        self._num_bytes = num_bytes
        self._lock = threading.Lock()  # for the process
        self._process: _ClientProcess | None = None

    def has(self, name: str) -> bool:
        code, _ = self._ask(HAS, name)
        return code > 0

    def get(self, name: str, num_bytes: int) -> bytes | None:
        assert num_bytes == self._num_bytes
        code, value = self._ask(GET, name)
        if code == _TOO_LONG:
            raise DamagedBlockError(f"has more than {num_bytes} bytes")
        return value if code >= 0 else None

    def put(self, name: str, value: bytes) -> bool:
        code, _ = self._ask(PUT, name, value)
        return code == 0

    def remove(self, name: str) -> None:
        self._ask(REMOVE, name)

    def close(self) -> None:
        with self._lock:
            self._end_process()

    def _ask(self, operation: bytes, name: str, value: bytes = b"") -> tuple[int, bytes]:
        """Mooncake's code and value. A process that has failed is replaced at the next call."""
        with self._lock:
            try:
                if self._process is None:
                    self._process = _ClientProcess(
                        self._package_folder, self.address, self._num_bytes
                    )
                    code, words = self._process.answer(START_SECONDS)
                    if code:
                        raise OSError(words.decode())
                self._process.requests.send_bytes(operation + name.encode() + b"\0" + value)
                code, found = self._process.answer(block_server.ANSWER_SECONDS)
            except (OSError, EOFError, TimeoutError) as error:
                self._end_process()
                raise ServerAwayError(str(error) or "its client has ended") from error
        if code >= 0 or code in (_NO_ROOM, _TOO_LONG) or code in _NOT_THERE:
            return code, found
        raise ServerAwayError(_WORDS.get(code, f"error {code} of Mooncake"))

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class _ClientProcess:
    """A process, and the frames to and from it.

    Args:
        package_folder: where the package mooncake lies.
        master: host:port.
        num_bytes: of every value.
    """

    def __init__(self, package_folder: Path, master: str, num_bytes: int) -> None:
        own, others = socket.socketpair()
        with others:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", mooncake_process.__file__, str(package_folder)),
                    *(str(others.fileno()), master, str(num_bytes)),
                ],
                pass_fds=[others.fileno()],
                env={
                    name: each for name, each in os.environ.items() if name.startswith(_ENVIRONMENT)
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for us
            )
        self.pid = process.pid
        self.requests = Connection(own.detach())
        self.end = weakref.finalize(self, _end, process, self.requests)

    def answer(self, seconds: float) -> tuple[int, bytes]:
        """The code and the value that it sends.

        Raises:
            TimeoutError: nothing comes in time.
            OSError, EOFError: it has ended.
        """
        if not self.requests.poll(seconds):
            raise TimeoutError(f"no answer for {seconds:g} s")
        frame = self.requests.recv_bytes()
        return CODE.unpack(frame[: CODE.size])[0], frame[CODE.size :]


def _end(process: subprocess.Popen[bytes], requests: Connection) -> None:
    requests.close()
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(block_server.ANSWER_SECONDS)
