"""Language models behind the server: GGUF models in a repository in, OpenAI's API and text routes out."""
