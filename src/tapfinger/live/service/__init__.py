"""The coordinator at work: its loops, what people and agents ask of it, and who leads."""
