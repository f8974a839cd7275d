"""The CPU backend: native kernels, and a decoder's forward as one program of them."""
