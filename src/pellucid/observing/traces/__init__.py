"""Recorded events: without what people wrote, as a state at some moment, in the forms of other tools."""
