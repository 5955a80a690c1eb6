"""Model definitions by architecture: a checkpoint's configuration in, a `Trace` out."""
