"""The process that has Mooncake's client. `MooncakeValues` starts it with `python -I`; it imports nothing of pellucid.

Arguments: the folder of the package mooncake, a socket, the master (host:port), the bytes of a value.

Over the socket go frames (`multiprocessing.connection`). A request is an operation, a name, a zero byte, and the value
of `PUT`; a reply is a code of Mooncake (below zero: an error), and the value of `GET` or what an error was. The first
reply comes by itself, when there is a connection with the master.
"""

import ctypes
import os
import socket
import struct
import sys
from multiprocessing.connection import Connection
from typing import Any

HAS, GET, PUT, REMOVE = b"?", b"<", b">", b"-"
CODE = struct.Struct("<q")
INTERNAL_ERROR, RPC_FAIL = -1, -900
CONNECT_SECONDS = 1.0
BUFFER_BYTES = 16 << 20  # of Mooncake's client, for values on their way


def connect(master: str, file_bytes: int) -> Any:
    """A client that gives the store no memory of its own.

    Raises:
        OSError: no master answers. Mooncake's own attempts take a minute and a half.
    """
    host, port = master.rsplit(":", 1)
    with socket.create_connection((host, int(port)), CONNECT_SECONDS) as reached:
        own_host = reached.getsockname()[0]
    from mooncake.store import MooncakeDistributedStore

    client = MooncakeDistributedStore()
    setting = os.environ.get
    code = client.setup(
        setting("MOONCAKE_LOCAL_HOSTNAME", own_host),
        setting("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
        0,
        BUFFER_BYTES + 4 * file_bytes,
        setting("MOONCAKE_PROTOCOL", "tcp"),
        setting("MOONCAKE_DEVICE", ""),
        master,
    )
    if code:
        raise OSError(f"Mooncake's setup failed with {code}")
    return client


def answer(
    client: Any, request: bytes, value: memoryview, value_address: int
) -> tuple[int, bytes | memoryview]:
    """The code and the value that answer a request.

    Args:
        value: takes what is read; its address is `value_address`.
    """
    operation, (name, _, given) = request[:1], request[1:].partition(b"\0")
    if operation == HAS:
        return client.is_exist(name.decode()), b""
    if operation == PUT:
        return client.put(name.decode(), given), b""
    if operation == REMOVE:
        return client.remove(name.decode(), True), b""  # also while somebody else may be reading it
    code = client.get_into(name.decode(), value_address, len(value))
    return code, value[: max(0, code)]


def main() -> None:
    package_folder, handle, master, file_bytes = sys.argv[1:]
    sys.path.insert(0, package_folder)
    requests = Connection(int(handle))
    try:
        client = connect(master, int(file_bytes))
        numbers = (ctypes.c_char * int(file_bytes))()
        address = ctypes.addressof(numbers)
        client.register_buffer(address, len(numbers))
        requests.send_bytes(CODE.pack(0))
    except (OSError, ImportError) as error:
        code = RPC_FAIL if isinstance(error, OSError) else INTERNAL_ERROR
        requests.send_bytes(CODE.pack(code) + str(error).encode())
        return
    value = memoryview(numbers).cast("B")
    while True:
        code, found = answer(client, requests.recv_bytes(), value, address)
        requests.send_bytes(CODE.pack(code) + found)


if __name__ == "__main__":
    try:
        main()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the engine has ended
    finally:
        os._exit(0)  # Mooncake's threads do not end by themselves
