"""Networks in torch, for learners that need more than the native one: observations in, what to do and its worth out."""
