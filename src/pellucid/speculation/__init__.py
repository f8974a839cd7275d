"""Drafts: who guesses the next tokens of a request, and how many guesses are worth their time."""
