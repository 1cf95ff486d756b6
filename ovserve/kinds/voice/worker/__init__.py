"""Text to speech by OpenVINO GenAI, in the engine process."""
