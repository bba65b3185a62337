"""Black-box cases from bug reports, each against a server set up as the case asks."""
