"""The runtime all planes share: contexts, channels, rings, pools, telemetry, probes. No ML or web framework here."""
