"""Stages: a model whose layers several machines compute. The engine's process has the last ones, and the scheduler."""
