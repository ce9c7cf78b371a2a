"""A stand-in web site: a small gazette with sitemaps, archives and lists, and everything that sites do wrong."""
