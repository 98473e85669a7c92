"""The ten contents of the tour, a file each: numbers are computed here, words stand on the page."""
