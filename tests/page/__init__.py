"""A package, so that its browser ends with it: playwright keeps an event loop in the thread of the tests."""
