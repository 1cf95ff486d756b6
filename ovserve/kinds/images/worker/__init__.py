"""The engine of image generation, on the pipelines of openvino_genai."""
