"""Text to speech: audio of a text, sentence by sentence."""
