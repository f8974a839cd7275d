"""What NVIDIA's management library says of a GPU, with a fake of its package."""

import sys
from types import SimpleNamespace

import pytest
import torch

from pellucid.backends.torch.nvml import find_facts
from pellucid.benchmark.planned_model import measure_this_machine, plan_shape
from pellucid.facts.machine import DeviceFacts
from pellucid.inputs.config import EngineConfig
from support.tiny_shape import TINY_SHAPE


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """The functions of pynvml that are used; answers and refuses as the driver does."""

    def __init__(self, refuses=()):
        self.num_open = 0

        def answer(name, value):
            def asked(*args):
                assert self.num_open == 1
                if name in refuses:
                    raise NVMLError("Not Supported")
                return value

            return asked

        super().__init__(
            NVMLError=NVMLError,
            NVML_CLOCK_SM=1,
            nvmlInit=lambda: self.opened(1),
            nvmlShutdown=lambda: self.opened(-1),
            nvmlDeviceGetHandleByUUID=answer("handle", 7),
            nvmlDeviceGetName=answer("name", b"NVIDIA H200"),
            nvmlSystemGetDriverVersion=answer("driver", "570.86.15"),
            nvmlDeviceGetMemoryInfo=answer("memory", SimpleNamespace(total=150_754_820_096)),
            nvmlDeviceGetEnforcedPowerLimit=answer("power", 700_000),  # mW
            nvmlDeviceGetMaxClockInfo=answer("clock", 1980),  # MHz
            num_open=0,
        )

    def opened(self, change):
        self.num_open += change


@pytest.fixture
def gpu(monkeypatch):
    properties = SimpleNamespace(uuid="12ab", name="NVIDIA H200", total_memory=150_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return torch.device("cuda")


def test_all_facts(gpu, monkeypatch):
    library = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    facts = find_facts(gpu)
    assert facts == DeviceFacts("NVIDIA H200", "570.86.15", 150_754_820_096, 700.0, 1.98e9)
    assert facts.words == "NVIDIA H200, driver 570.86.15, 151 GB, limit 700 W, up to 1980 MHz"
    assert library.num_open == 0


def test_what_a_gpu_does_not_tell_is_left_out(gpu, monkeypatch):
    library = FakeNvml(refuses=("power", "clock"))
    monkeypatch.setitem(sys.modules, "pynvml", library)
    facts = find_facts(gpu)
    assert facts is not None and facts.words == "NVIDIA H200, driver 570.86.15, 151 GB"
    assert library.num_open == 0


@pytest.mark.parametrize("library", [None, FakeNvml(refuses=("handle",))])
def test_without_the_library_or_its_answer_pytorch_knows_name_and_memory(gpu, monkeypatch, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)  # None: importing it fails
    facts = find_facts(gpu)
    assert facts is not None and facts.words == "NVIDIA H200, 150 GB"


def test_a_plan_names_the_device_that_was_measured(monkeypatch):
    monkeypatch.setattr(
        "pellucid.backends.torch.backend.find_facts", lambda device: DeviceFacts("NVIDIA Fake")
    )
    model = plan_shape("tiny", TINY_SHAPE, EngineConfig(backend="torch", device="cpu"))
    assert measure_this_machine(model).name == "NVIDIA Fake"


def test_the_host_has_no_device():
    assert find_facts(torch.device("cpu")) is None
