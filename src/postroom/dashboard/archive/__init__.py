"""Pages of the archive: what is proven to be in it, what is where by year, and imports of uploaded files."""
