"""What `make` runs over this tree: the requirements report and the generated pages."""
