"""The backend on PyTorch: any device that it has, with the same bits in any batch."""
