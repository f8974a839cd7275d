"""Text to tokens and back: tokenizers, chat templates, detokenization, stop strings."""
