"""Proposers: each file is one way to guess the next tokens of requests."""
