"""The live view of a running job: `annotq top`."""
