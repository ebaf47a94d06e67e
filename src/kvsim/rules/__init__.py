"""Rule sets: every choice an engine version makes, as data, each with the engine's file and function as its source."""
