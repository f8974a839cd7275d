"""The small world the bundled models were trained on: every sentence here is our own writing."""
