"""One reader and one writer per format."""
