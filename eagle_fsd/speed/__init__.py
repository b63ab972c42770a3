"""Where the time goes, and the tree that fits the machine."""
