"""Values, charts and foreign content as a page shows them."""
