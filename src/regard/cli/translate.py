"""`regard translate`: sentences to translations with a trained model."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regard.cli.outputs import check_can_write, check_not_read

# Of these there may be a folder full, which is made where it is not there.
PICTURES = ("svg", "png")


def translate(
    model: Path,
    /,
    *sentences: str,
    input: Path | None = None,
    output: Path | None = None,
    alignment: str | None = None,
    alignment_of: str | None = None,
    alignment_out: Path | None = None,
    nbest: int = 1,
    beams: int = 5,
    length_penalty: float | None = None,
    shortest: int = 0,
    longest: int | None = None,
    batch_size: int = 64,
    ensemble: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    device: str = "cpu",
) -> None:
    """Translate sentences given as arguments, in a file, or on standard input, one a line.

    Args:
        model: the folder of a trained model.
        sentences: what to translate, each in quotes; without any, --input or standard input.
        input: a file with one sentence a line, plain or gzipped.
        output: a file for the translations; standard output by default.
        alignment: pharaoh (0-0 1-2, source first), json, svg or png: where the model looked for each word.
        alignment_of: words or tokens; tokens by default where the model reads or writes single characters.
        alignment_out: file for the alignments, a line a sentence; for pictures a file, or a folder for many.
            By default pharaoh and json follow the translation after a tab.
        nbest: so many translations of each sentence, as lines "number ||| translation ||| score".
        beams: how many hypotheses the search follows; 1 is greedy search.
        length_penalty: how much long translations are favoured; the value stored with the model by default.
        shortest: the fewest tokens of a translation.
        longest: the most tokens of a translation; by default twice those of the sentence and 10, and more where
            translations in the training data were longer.
        batch_size: how many sentences are translated at a time; 1 answers every line of a pipe as it comes.
        ensemble: the folder of another model that votes on every word; give --ensemble once for each.
        device: cpu, cuda or cuda:1.
    """
    from regard.translation.piping import Wishes, run

    check_not_read((model, *ensemble), output=output, alignment_out=alignment_out)
    check_can_write(output=output, alignment_out=None if alignment in PICTURES else alignment_out)
    run(
        Wishes(
            models=(model, *ensemble),
            sentences=sentences,
            input=input,
            output=output,
            alignment=alignment,
            alignment_of=alignment_of,
            alignment_out=alignment_out,
            beams=beams,
            nbest=nbest,
            length_penalty=length_penalty,
            shortest=shortest,
            longest=longest,
            batch_size=batch_size,
            device=device,
        )
    )
