"""Contract suites shipped to implementers, and makers of test data: pictures, recordings, tiny models."""
