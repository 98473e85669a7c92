"""The experiments of the chapter: small models with every kind of attention and with none, measured and drawn."""
