"""What a log tells, fitted once: its behaviours, their clones, its dynamics; no limit and no run takes
part.
"""
