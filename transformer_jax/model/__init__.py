"""The encoder-decoder Transformer (section 3)."""
