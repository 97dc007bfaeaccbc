"""The commands, a module each: its options, and `run`, which returns the exit status."""
