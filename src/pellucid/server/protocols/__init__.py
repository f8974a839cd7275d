"""Protocols: each module turns bodies into requests, and tokens into replies."""
