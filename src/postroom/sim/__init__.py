"""Stand-ins for the services that Postroom talks to. Only `cli`, `demo`, tests and benchmarks import them."""
