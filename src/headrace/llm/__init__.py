"""The language-model plane: a quantised checkpoint in, tokens out, many requests at once on a few cores."""
