"""Checkpoints that other quantizers wrote: AWQ, GPTQ, compressed-tensors, FP8, MXFP4, NF4."""
