"""Proposers guess the next tokens of requests. Each file is one way to guess."""
