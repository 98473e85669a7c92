"""The four tokens that every vocabulary begins with."""

PAD = 0  # fills a row of a batch after its end
UNKNOWN = 1  # a piece of text that the training data did not have
BEGIN = 2  # what the decoder reads before its first word
END = 3  # what the decoder writes after its last word; the encoder reads it too

COUNT = 4
