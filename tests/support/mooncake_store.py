"""A Mooncake store on this machine, over TCP: a master, and a process that gives it memory."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from pellucid.execution import block_server, mooncake_values
from pellucid.execution.block_server import ServerAwayError
from pellucid.execution.mooncake_values import MooncakeValues
from support.redis_server import free_port

TIMEOUT = 120.0  # seconds: a limit against hangs
PROBE = b"0" * 100


@dataclass
class MooncakeStore:
    """A store that tests may end and start again."""

    folder: Path  # of Mooncake's programs
    port: int  # of the master
    pages: int  # the port of the master's own pages
    memory: int  # the port of the process with memory
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"mooncake://127.0.0.1:{self.port}"

    def start(self) -> None:
        master = f"127.0.0.1:{self.port}"
        self._run("mooncake_master", f"--rpc_port={self.port}", f"--metrics_port={self.pages}")
        self._run(
            "mooncake_client",
            *(f"--master_server_address={master}", "--metadata_server=P2PHANDSHAKE"),
            *("--host=127.0.0.1", f"--port={self.memory}", "--protocol=tcp"),
            "--global_segment_size=256MB",
        )
        deadline = time.monotonic() + TIMEOUT
        values = self.values(len(PROBE))
        while not _takes(values):
            assert time.monotonic() < deadline, "Mooncake takes no value"
            time.sleep(0.1)
        values.close()

    def _run(self, program: str, *flags: str) -> None:
        self.processes.append(
            subprocess.Popen(
                [self.folder / program, *flags],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )

    def stop(self) -> None:
        for each in self.processes:
            each.kill()
        for each in self.processes:
            each.wait(TIMEOUT)
        self.processes.clear()

    def values(self, num_bytes: int) -> MooncakeValues:
        return MooncakeValues(self.url, num_bytes)

    def names(self) -> list[str]:
        with urlopen(f"http://127.0.0.1:{self.pages}/get_all_keys", timeout=TIMEOUT) as reply:
            return [name for name in reply.read().decode().split() if name != "probe"]

    def clear(self) -> None:
        values = self.values(len(PROBE))
        for name in self.names():
            values.remove(name)
        values.close()


def _takes(values: MooncakeValues) -> bool:
    try:
        values.put("probe", PROBE)
        return values.get("probe", len(PROBE)) == PROBE
    except ServerAwayError:
        return False


@contextmanager
def running_mooncake() -> Iterator[MooncakeStore]:
    """Its calls may take as long as a busy machine takes them."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import mooncake.store"], capture_output=True, text=True
    )
    if loaded.returncode:
        pytest.skip(f"needs Mooncake (pip install 'pellucid[mooncake]'): {loaded.stderr[-200:]}")
    found = find_spec("mooncake")
    assert found is not None and found.origin is not None
    store = MooncakeStore(Path(found.origin).parent, *(free_port() for _ in range(3)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_server, "ANSWER_SECONDS", TIMEOUT)
        patch.setattr(mooncake_values, "START_SECONDS", TIMEOUT)
        try:
            store.start()
            yield store
        finally:
            store.stop()
