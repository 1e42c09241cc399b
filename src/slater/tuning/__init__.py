"""Settings chosen without the environment."""
