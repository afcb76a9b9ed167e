"""The parts of the trace reader, in the order of the data: bytes, blocks, events, columns, attribution."""
