"""Models from real checkpoints: finds them, checks them, and gives decoders their weights."""
