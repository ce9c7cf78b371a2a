"""The command line: thin commands over `app`. Exit code 0 is success, 1 a failure, 2 bad usage."""
