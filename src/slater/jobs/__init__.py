"""Many jobs at once: processes and Ray behind one interface; cells that are resumed; sweeps of runs."""
