"""Text to tokens and back, as the checkpoint's metadata defines it."""
