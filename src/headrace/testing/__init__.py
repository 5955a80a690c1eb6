"""Contract suites shipped to implementers."""
