"""Kernels in Triton, for GPUs of CUDA."""
