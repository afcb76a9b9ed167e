"""The small real traces: what the tests and `annotq demo` (as annotq.demo_data) read."""
