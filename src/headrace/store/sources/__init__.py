"""One file per place models come from."""
