"""The studio: a page on this machine for one's own points, sentences and scores."""
