"""Drafters that need more than the text's last token."""
