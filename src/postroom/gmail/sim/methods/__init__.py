"""What the methods of the API do, one module for each of its collections."""
