"""Parses what users type: options, models and prompts, defaults from files and variables, help, advice."""
