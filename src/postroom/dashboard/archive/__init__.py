"""Coverage, gaps, bad messages and certificates of the archive."""
