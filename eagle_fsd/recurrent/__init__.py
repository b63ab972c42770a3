"""Draft trees over layers that carry a state from token to token instead of keys and values."""
