"""The backend that an EngineConfig gets, and configurations that are refused."""

import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from pellucid.backends.choice import ISA_VARIABLE, make_backend
from pellucid.backends.cpu.backend import MAX_ROWS, CpuBackend, unsupported_shape
from pellucid.backends.cpu.ranks import planned_ranks
from pellucid.backends.native import cpu_info, kernel_levels
from pellucid.backends.quantization.formats import FORMATS
from pellucid.backends.quantization.weights import quantize_matrix
from pellucid.facts.model_config import GatedDeltaNetConfig
from pellucid.inputs.config import EngineConfig
from pellucid.shapes import SHAPES, find_shape
from support.tiny_shape import TINY_SHAPE


def test_auto_takes_native_kernels_where_they_beat_numpy(monkeypatch):
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    backend = make_backend(EngineConfig())
    assert backend.name == ("numpy" if kernel_levels() == ["portable"] else "cpu")
    assert make_backend(EngineConfig(backend="numpy")).name == "numpy"
    assert make_backend(EngineConfig(backend="cpu")).kernels.isa == kernel_levels()[0]


@pytest.mark.parametrize("isa", kernel_levels())
def test_a_level_can_be_forced(isa, monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, isa)
    assert make_backend(EngineConfig()).kernels.isa == isa


def test_an_unknown_level_is_an_error(monkeypatch):
    monkeypatch.setenv(ISA_VARIABLE, "sse9")
    with pytest.raises(ValueError, match=r"isa='sse9': this machine runs .*portable"):
        make_backend(EngineConfig())


def test_threads():
    info = cpu_info()
    assert make_backend(EngineConfig(backend="cpu")).pool.num_threads == info.num_threads
    assert make_backend(EngineConfig(backend="cpu", num_threads=1)).pool.num_threads == 1
    too_many = info.num_logical_cpus + 1
    for backend in ("cpu", "numpy", "auto"):
        with pytest.raises(ValueError, match=rf"num_threads={too_many}: this machine has"):
            make_backend(EngineConfig(backend=backend, num_threads=too_many))


def test_numpy_has_one_thread_unless_more_are_asked_for(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for num_threads, expected in ((2, 2), (None, 1)):
        make_backend(EngineConfig(backend="numpy", num_threads=num_threads))
        libraries = (each for each in threadpool_info() if each["user_api"] == "blas")
        assert {each["num_threads"] for each in libraries} == {expected}
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # a system that does not say
    with pytest.raises(ValueError, match="num_threads=2: this machine has 1"):
        make_backend(EngineConfig(backend="numpy", num_threads=2))


def test_a_program_has_rows_for_the_largest_step_and_no_more_than_512():
    def area(max_num_batched_tokens):
        config = EngineConfig(backend="cpu", max_num_batched_tokens=max_num_batched_tokens)
        return make_backend(config, TINY_SHAPE).open_area_bytes(TINY_SHAPE, "int4")

    assert 0 < area(64) < area(512) == area(2048)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"experts": "mapped"}, "experts='mapped': needs backend='cpu'"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size=2: needs backend='cpu'"),
    ],
)
def test_settings_of_native_kernels_are_refused_without_them(setting, named, monkeypatch):
    monkeypatch.setattr("pellucid.backends.native.kernel_levels", lambda: ["portable"])
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    monkeypatch.setattr("pellucid.backends.choice.find_spec", lambda name: name)
    with pytest.raises(ValueError, match=named):
        make_backend(EngineConfig(**setting, device="cuda"))
    with pytest.warns(RuntimeWarning, match="lacks AVX2"), pytest.raises(ValueError, match=named):
        make_backend(EngineConfig(**setting))


def test_ranks_are_joined_unless_they_are_planned(monkeypatch):
    monkeypatch.setattr("pellucid.backends.cpu.ranks.find_spec", lambda name: None)
    config = EngineConfig(backend="cpu", tensor_parallel_size=2)
    with pytest.raises(ValueError, match="tensor_parallel_size=2: needs mpi4py"):
        make_backend(config, TINY_SHAPE)
    assert make_backend(config, TINY_SHAPE, is_planned=True).weights.num_ranks == 2
    three = CpuBackend(ranks=replace(planned_ranks(2), num_on_machine=3))
    for available, share in ((100, 33), (None, None)):
        monkeypatch.setattr("pellucid.backends.base.available_memory", lambda: available)  # noqa: B023
        assert (three.available_memory(), CpuBackend().available_memory()) == (share, available)


@pytest.mark.parametrize("quantize", [True, False])
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_activations_are_rounded_unless_the_settings_say_no(backend, quantize):
    made = make_backend(EngineConfig(backend=backend, quantize_activations=quantize))
    weight, x = np.random.default_rng(0).standard_normal((2, 32, 64)).astype(np.float32)
    matrix = quantize_matrix(weight, FORMATS["int8"])
    exact = x @ matrix.dequantize().T
    error = np.abs(made.ops.linear(x, made.weights.matrix(matrix)) - exact).max()
    assert (error > 1e-3) == quantize


def test_more_threads_than_may_run_is_a_warning(monkeypatch):
    class OneCore:
        num_threads, num_logical_cpus, thread_limit, huge_pages = 1, 2, "quota", True

    monkeypatch.setattr("pellucid.backends.native.cpu_info", OneCore)
    with pytest.warns(RuntimeWarning, match=r"num_threads=2: more than the 1 .*quota") as seen:
        make_backend(EngineConfig(backend="cpu", num_threads=2))
    assert seen[0].filename == __file__


def test_huge_pages_that_are_switched_off_are_a_warning(monkeypatch):
    class SmallPages:
        num_threads, num_logical_cpus, huge_pages = 1, 1, False

    monkeypatch.setattr("pellucid.backends.native.cpu_info", SmallPages)
    with pytest.warns(RuntimeWarning, match=r"transparent huge pages .* longer; .*madvise") as seen:
        make_backend(EngineConfig(backend="cpu"))
    assert seen[0].filename == __file__


def test_programs_have_room_for_the_tokens_of_a_step():
    few = EngineConfig(backend="cpu", max_num_seqs=2, max_model_len=32)
    for config, rows in ((few, 64), (EngineConfig(backend="cpu"), MAX_ROWS)):
        assert make_backend(config, _config(head_dim=16))._max_rows == rows


def test_auto_says_why_it_falls_back_to_numpy(monkeypatch):
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    with pytest.warns(RuntimeWarning, match="head_dim=12: native kernels take .*: NumPy computes"):
        assert make_backend(EngineConfig(), _config(head_dim=12)).name == "numpy"
    monkeypatch.setattr("pellucid.backends.native.kernel_levels", lambda: ["portable"])
    with pytest.warns(RuntimeWarning, match="this processor lacks AVX2.*: NumPy compu") as seen:
        assert make_backend(EngineConfig(), _config(head_dim=16)).name == "numpy"
    assert seen[0].filename == __file__


@pytest.mark.parametrize("name", SHAPES)
def test_native_kernels_compute_every_known_shape(name):
    assert unsupported_shape(find_shape(name)) is None


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "named"),
    [
        (8, 16, None),
        (512, 32, None),
        (4, 16, "head_dim=4: "),
        (20, 16, "head_dim=20: "),
        (520, 16, "head_dim=520: native kernels take multiples of 8, at most 512"),
        (8, 24, "value_dim=24: native kernels take multiples of 16"),
    ],
)
def test_shapes_that_native_kernels_compute(head_dim, value_dim, named):
    own = _config(head_dim)
    recurrence = GatedDeltaNetConfig(1, 1, 8, value_dim, 4)
    recurrent = replace(own.layers[0], attention=None, recurrence=recurrence)
    found = unsupported_shape(replace(own, layers=(*own.layers, recurrent)))
    assert (found is None) if named is None else found.startswith(named)


def test_an_unbuilt_extension_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pellucid.backends.cpu.backend", None)
    with pytest.warns(RuntimeWarning, match=r"cpu.*backend.*: NumPy computes"):
        assert make_backend(EngineConfig()).name == "numpy"


def test_formats_that_are_refused():
    backend = make_backend(EngineConfig(backend="cpu"))
    with pytest.raises(ValueError, match="allowed are f32, bf16, int8, int8,int4, int4"):
        backend.make_kv_cache(_config(head_dim=16), 4, 16, "fp8")
    with pytest.raises(ValueError, match=r"head_dim=12: .*multiples of 8.*numpy"):
        backend.kv_bytes_per_block(_config(head_dim=12), 16, "bf16")


def _config(head_dim):
    layer = TINY_SHAPE.layers[0]
    attention = replace(layer.attention, head_dim=head_dim)
    return replace(TINY_SHAPE, layers=(replace(layer, attention=attention),) * 2)


def test_a_device_without_pytorch_says_what_brings_it(monkeypatch):
    monkeypatch.setattr("pellucid.backends.choice.find_spec", lambda name: None)
    missing = "PyTorch is not installed; pip install"
    with pytest.raises(ValueError, match=f"backend='auto', device='cuda': {missing}"):
        make_backend(EngineConfig(device="cuda"))
    with pytest.raises(ValueError, match=f"backend='torch', device='auto': {missing}"):
        make_backend(EngineConfig(backend="torch"))
    monkeypatch.setattr("pellucid.backends.choice.GPU_DRIVERS", ("/dev/null",))
    assert make_backend(EngineConfig()).name != "torch"
