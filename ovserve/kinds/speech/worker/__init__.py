"""Speech recognition: voice activity detection, the engine, and conversion of Whisper models."""
