"""Golden data for whoever writes a backend: tiny checkpoints and what they must produce."""
