"""Proposers: what guesses the next tokens of requests. Each file is one way to guess."""
