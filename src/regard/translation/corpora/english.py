"""English number words below a hundred."""

TEENS = ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
SMALL = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", *TEENS)
TENS = {2: "twenty", 3: "thirty", 4: "forty", 5: "fifty", 6: "sixty", 7: "seventy", 8: "eighty", 9: "ninety"}


def below_hundred(number: int) -> str:
    """The number in words.

    >>> below_hundred(7), below_hundred(42)
    ('seven', 'forty-two')
    """
    if number < len(SMALL):
        return SMALL[number]
    ten, unit = divmod(number, 10)
    return TENS[ten] + (f"-{SMALL[unit]}" if unit else "")
