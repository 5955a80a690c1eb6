"""Model files: GGUF and safetensors, read without copying."""
