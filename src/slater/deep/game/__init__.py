"""The parts of the game that algorithms share: E_D and A_D, the dual players."""
