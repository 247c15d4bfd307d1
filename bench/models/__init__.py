"""Models of the benchmark: the configuration catalog and closed-form parameter and FLOP counts."""
