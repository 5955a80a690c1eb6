"""The model store: where models come from, how they are verified, and which version is current."""
