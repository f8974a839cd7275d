"""Finds checkpoints, checks them, and gives decoders their weights."""
