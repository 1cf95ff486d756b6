"""Image generation and editing by diffusion models."""
