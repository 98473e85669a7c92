"""The encoder-decoder of Bahdanau, Cho and Bengio (arXiv 1409.0473), with any score, or without attention."""

from regard.translation.model.architecture import Architecture
from regard.translation.model.decoder import DecoderState
from regard.translation.model.encoder_decoder import EncoderDecoder

__all__ = ["Architecture", "DecoderState", "EncoderDecoder"]
