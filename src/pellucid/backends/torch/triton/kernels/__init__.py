"""Kernels as Triton compiles them; the modules beside this folder launch them."""
