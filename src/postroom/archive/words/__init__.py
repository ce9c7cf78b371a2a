"""Words as both archives see them: how text is cut into them, how well they match, and which one may be meant."""
