"""Replicas: engines in processes of their own behind one server, and the router between them.

`ReplicaPool` is to the server what an `AsyncLLMEngine` is. Nothing here computes: an engine runs in each `replica`.
"""
