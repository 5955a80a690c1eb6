"""When and where a queued row runs."""
