"""Where the time goes, and the prices of the trees that fit the machine."""
