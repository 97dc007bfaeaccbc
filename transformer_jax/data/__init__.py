"""From sentence files to batches of tokens."""
