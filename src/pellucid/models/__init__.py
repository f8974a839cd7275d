"""Decoders, each written once over the ops of `pellucid.backends.base`."""
