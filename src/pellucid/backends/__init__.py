"""What models are computed on: one contract (`base`) and its implementations."""
