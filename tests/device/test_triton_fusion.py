"""The launches of a layer, counted in Triton's interpreter."""

import pytest

pytest.importorskip("triton")

from triton.runtime.interpreter import GridExecutor

from pellucid.backends.torch.backend import TorchBackend
from pellucid.backends.torch.triton.ops import TritonOps
from support.batches import Share, forward_batch
from support.checkpoints import write_checkpoint
from support.decoders import load_decoder
from support.host_ops import DEVICE

LAYER = (
    *("rms_norm_kernel", "linear_kernel", "heads_kernel", "attention_kernel", "linear_kernel"),
    *("rms_norm_kernel", "linear_kernel", "gated_kernel", "linear_kernel"),
)
HEAD = ("rms_norm_kernel", "linear_kernel", "peaks_kernel", "largest_kernel")


@pytest.mark.skipif(DEVICE != "cpu", reason="launches on a device are not counted")
def test_a_layer_is_nine_launches(tmp_path, monkeypatch):
    own = TorchBackend(DEVICE)
    own.ops = TritonOps(own.device, own.ops.sizes)
    path = write_checkpoint(tmp_path / "model", "qwen3", dtype="bfloat16")
    decoder, config = load_decoder(path, own)
    launches, launch = [], GridExecutor.__call__

    def counted(executor, *args, **kwargs):
        launches.append(executor.fn.__name__)
        return launch(executor, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", counted)
    batch = forward_batch([Share([5], 0, 1, [0])], 16)
    own.compile(decoder, config).step(batch, own.make_kv_cache(config, 1, 16, "bf16"))
    assert launches == [*LAYER * config.num_layers, *HEAD]
