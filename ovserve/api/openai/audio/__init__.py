"""OpenAI's endpoints for audio: transcriptions and translations."""
