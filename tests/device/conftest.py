"""Where there is no GPU, Triton's kernels run in its interpreter: this has to be said before one is imported."""

import importlib.util

import pytest

if importlib.util.find_spec("triton") is not None:
    import support.interpreter  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    # Experts of checkpoints in f32 are for plain PyTorch, which asks the host.
    for message in (
        "no kernel reads this format of experts",
        "decode steps are no graphs .*captur",
    ):
        config.addinivalue_line("filterwarnings", f"ignore:device='cuda'. {message}:RuntimeWarning")
