"""Learners: what was collected in, a better policy out."""
