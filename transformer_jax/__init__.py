"""A trainer, translator and evaluator for the Transformer of "Attention Is All You Need"."""
