"""The translation room's models: given as a folder, or learnt here, kept in a cache, and shown while they learn."""
