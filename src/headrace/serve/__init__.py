"""The inference plane: requests in, one pipeline of stages, answers out."""
