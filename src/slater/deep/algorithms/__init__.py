"""One algorithm, one file; `base` says what an algorithm is, `registry` finds one by name."""
