"""What callers set and send, checked at construction and immutable."""
