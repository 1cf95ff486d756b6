"""English text as it is read aloud: numbers, units, signs and addresses become words.

`wetext` reads numbers, dates, money and units. What it reads otherwise than people do, or fails on, is
written out before: thousands, minus signs, ranges of money, versions, addresses. Letters of other alphabets
become English ones. All work is linear in the text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Any

from anyascii import anyascii

# Left for later steps: punctuation that the model pauses at, and signs that `wetext` reads with a number.
KEPT = "—…€£¥°₹₩₽"
FOLDED = {
    **dict.fromkeys("‐‑‒−﹣－", "-"), **dict.fromkeys("‘’‚‛′＇", "'"), **dict.fromkeys("“”„‟«»″＂", '"'),
    **dict.fromkeys("[{", "("), "]": ")", "}": ")", **dict.fromkeys("•·●▪", ", "), "–": "—", "―": "—",
    "™": " trademark ",
    "®": " registered ", "©": " copyright ", "²": " squared ", "³": " cubed ", "×": " times ",
    "÷": " divided by ", "±": " plus or minus ", "≤": " less than or equal to ",
    "≥": " greater than or equal to ", "≠": " not equal to ", "≈": " about ", "∞": " infinity ",
    "→": " to ", "√": " square root of ", "∑": " sum ", "∆": " delta ", "✓": " check ", "✔": " check ",
    "✗": " cross ", "§": " section ", "‰": " per mille ", "¢": " cents ",
    "₿": " bitcoin ", "µ": "micro", "№": "number ",
    "℃": "°C", "℉": "°F", "Ω": " ohm ", "⁄": "/",
}  # fmt: skip
SIGNS = {
    "&": "and", "%": "percent", "$": "dollars", "€": "euros", "£": "pounds", "¥": "yen", "₹": "rupees",
    "₩": "won", "₽": "roubles", "@": "at",
    "#": "hash", "+": "plus", "=": "equals", "<": "less than", ">": "greater than", "/": "slash",
    "\\": "backslash", "°": "degrees", "^": "to the power of",
}  # fmt: skip
IN_ADDRESS = {
    ".": "dot", ":": "colon", "-": "dash", "_": "underscore", "?": "question mark", "~": "tilde",
    "*": "star", ",": "comma", ";": "semicolon", "!": "exclamation mark",
}  # fmt: skip
MARKUP = re.compile(r"(\[[^\[\]\n]+\]\(/[^()\n]*/\))")  # a word with its phonemes, which the library reads

_ADDRESS = re.compile(
    r"(?:https?://|www\.)[^\s()\"<>]*[\w/]|[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+"
    r"|(?<![\w.])(?:[a-z0-9-]{1,63}\.)+(?:com|org|net|io|dev|ai|edu|gov)\b(?:/[^\s()\"<>]*[\w/])?"
)
_MONTHS = {
    "Jan": "January", "Feb": "February", "Mar": "March", "Apr": "April", "Jun": "June", "Jul": "July",
    "Aug": "August", "Sep": "September", "Sept": "September", "Oct": "October", "Nov": "November",
    "Dec": "December",
}  # fmt: skip
_UNITS = {
    "V": "volts", "kV": "kilovolts", "A": "amperes", "l": "liters", "L": "liters", "hrs": "hours",
    "hr": "hours",
    "mAh": "milliampere hours", "Ah": "ampere hours", "m/s": "meters per second",
    "rpm": "revolutions per minute",
    "fps": "frames per second", "dpi": "dots per inch", "px": "pixels", "kcal": "kilocalories",
    "dB": "decibels",
}  # fmt: skip
_SHORT = {
    "e.g.": "for example", "i.e.": "that is", "vs.": "versus", "w/o": "without", "approx.": "approximately",
}  # fmt: skip
_COUNTED = (
    "chapter|part|section|volume|act|scene|book|war|bowl|appendix|phase|type|class|level|stage|title|article"
    "|table|season|episode|rocky|apollo|saturn"
)
_RULERS = (
    "Henry|Louis|Charles|George|Edward|William|James|Elizabeth|Richard|John|Paul|Pius|Benedict|Philip|Napoleon"
    "|Frederick|Catherine|Ivan|Alexander|Nicholas|Leo|Gregory|Peter|Francis|Mary|Margaret|Christian|Gustav"
    "|Ramesses|Ptolemy|Urban|Innocent|Clement|Wilhelm|Otto|Felipe|Carl|Haakon|Harald|Albert|Leopold"
)
_NO_PRONOUN = r"(?!I[ ](?!of|and|to|through|is|was|in|[A-Z(]))(?!I['’])"
_ROMAN = re.compile(
    rf"\b((?i:{_COUNTED}))[ ]{_NO_PRONOUN}(?=[IVX]|[LC][IVXLC])"
    r"(C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))(?<=[IVXLC])\b(?!['.]\w)"
)
_REGNAL = re.compile(
    rf"\b({_RULERS})[ ]{_NO_PRONOUN}(?=[IVX])(X{{0,2}}(?:IX|IV|V?I{{0,3}}))(?<=[IVX])\b(?!['.]\w)"
)
_NUMERALS = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_DIGITS_ONLY = re.compile(
    r"(?<![\w.$€£-])(?:\+\d{1,3}[ -]?(?:\(\d{1,5}\)[ -]?)?[\d -]{4,20}\d"
    r"|\d{3}-\d{4}|\d{1,9}(?:-\d{1,9}){3,8})(?![\w-])"
)
_DECADE = re.compile(r"\b(1[1-9]|20)(\d)0s\b")
_DECADES = (
    "hundreds",
    "tens",
    "twenties",
    "thirties",
    "forties",
    "fifties",
    "sixties",
    "seventies",
    "eighties",
    "nineties",
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"(?m)^[ \t]{0,8}#{1,6}[ \t]+", ""),  # Markdown's headings and emphasis
        (r"(?<=\d)[ ]?\*[ ]?(?=\d)", " times "),
        (r"(?<![\w~])~(?=[ ]?[$€£¥]?\d)", "about "),
        (r"[*`~|]{1,}|(?<!\w)_+|_+(?!\w)", " "),
        (r"(?<![$€£¥\d.])(\d+\.\d+)([A-Z])\b", r"\1 \2"),
        (r"(?<=\d(?:st|nd|rd|th))-(?=\d)", " to "),
        (
            r"(?<=[\w€$£¥])[ ]?/[ ]?(?=(?:day|week|month|year|hour|hr|min|kg|person|user|head|night|unit)\b)",
            " per ",
        ),
        (r"\b24/7\b", "twenty-four seven"),
        (r"\b(50|9)/(50|11)\b(?!/)", r"\1 \2"),
        (r"(?<![\w/.])(\d{1,4})/\1(?![\w/.])", r"\1 out of \1"),
        (r"(?<![\d/])(\d{1,2})/(\d{1,2})/(\d\d)(?![\d/])", r"\1/\2/20\3"),
        (r"(?<![\d.])(\d{1,2})\.(0?[1-9]|1[0-2])\.((?:19|20)\d\d)(?![\d.]|\w)", r"\3-\2-\1"),
        (r"(?<![\d.,])(\d{1,3})\.(\d{3})\.(\d{3})(?![\d.,])", r"\1\2\3"),
        (r"(?<![\d.,+-])(\d{1,3}) (\d{3}) (\d{3})(?![\d.,-]| \d)", r"\1\2\3"),
        (r"(?<![\w.])(\d+(?:\.\d+)?)[eE][+]?(-?\d+)(?![\w.])", r"\1 times ten to the power of \2"),
        (r"(?<=[\w)])\^(?![23](?!\d))", " to the power of "),
        (r"(?<![\w-])(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)(?=[ ]?(?:%|°|[a-zA-Z]{1,4}\b))(?!-)", r"\1 to \2"),
        (r"(?<=\d)(['′])(?=\d+(?:[\"″]|''))", " feet "),
        (r"(?<=feet )(\d+)(?:[\"″]|'')|(?<=\d)″", r"\1 inches "),
        (r"(?<=\d)[ ]?ft[ ](?=\d+[ ]?in\b)", " feet "),
        (r"(?<=feet )(\d+)[ ]?in\b", r"\1 inches"),
        (r"(?<=\d)′", " feet "),
        (r"\b(\d+)[ ]?h[ ]?(\d+)[ ]?m(?:in)?\b", r"\1 hours \2 minutes"),
        (r"(?<=[a-z])[ ][x×][ ](?=\d)", " by "),
        (r"\b(?:No|Nr)\.[ ]?(?=\d)", "number "),
        (r"_+", " "),
        (r"(?<![\d$€£¥.,])1,?000(?![\d,])", "one thousand"),  # `wetext` leaves a first 1 out
        (r"(?<![\d$€£¥.,])1,(?=\d{3}(?![\d,]))0{0,2}([1-9]\d*)", r"one thousand \1"),
        (r"(?<=\d),(?=\d{3}(?!\d))", ""),
        (r"(?<=\d)[ ]?—[ ]?(?=[$€£¥]?\d)", "-"),
        (r"(?<=[\d%°CF])[ ]?[-—][ ]?(?=[$€£¥])|(?<=[%°CF])(?<=\d[%°]|°[CF])[ ]?[-—][ ]?(?=\d)", " to "),
        (r"(?<=\d)[ ]+(?=\d/\d{1,2}\b)", " and "),
        (r"(?<![$€£¥\d.,])(\d[\d.]*)[ ]?m\b(?![./²³])", r"\1 meters"),
        (r"\)\(", ") ("),
        (r"(?<=s)'(?!\w)", ""),  # behind one the library leaves the word out
        (r"[ \t]{2,}", " "),
        (r"(?<![\w)%.-])-(?=[ ]?[$€£¥]?\.?\d)", "minus "),
        (r"(?<![\w.])\.(?=\d)", "0."),
        (r"(?<![\w.])\.(?=[A-Za-z])", "dot "),
        (r"[ ]*(?<!-)-{2,}(?!-)[ ]*|[ ]+-[ ]+", " — "),
        (r"\b([A-G])#(?!\w)", r"\1 sharp"),
        (r"(?<=\w)\+\+", " plus plus"),
        (r"#(?=\d)", " number "),
        (r"(?<!\w)#(?=[A-Za-z])", " hashtag "),
        (r"(?<=\d)[ ]?°(?![ ]?[CFK]\b)", " degrees "),
    )
)
_MONEY = re.compile(
    r"([$€£¥])1,?(\d{3})(\.\d{1,2})?(?![\d,]|\.\d)(?! ?(?:[kmb]n?\b|thousand|(?:m|b|tr)illion))"
)
_VERSION = re.compile(r"(?<![\w.])([vV]?)(\d+(?:\.\d+){2,})(?![\w]|\.\d)")
_UNIT = re.compile(
    rf"(?<=\d)[ ]?({'|'.join(sorted(map(re.escape, _UNITS), key=len, reverse=True))})(?![\w/²³]|\.\w)"
)
_MONTH = re.compile(rf"\b({'|'.join(_MONTHS)})\.?[ ](?=\d{{1,2}}\b)|(?<=\d[ ])({'|'.join(_MONTHS)})\b\.?")
_ABBREVIATION = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, _SHORT))})(?!\w)")
_GREEK = re.compile(r"(?<!\w)[α-ωΑ-Ω](?!\w)")  # a letter of its own, as in formulas
_THIN_SPACE = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_LONG = re.compile(r"\d{13,}")
_SCALES = r"(?:thousand|million|billion|trillion|[mb]n|k)"
_AMOUNT = rf"(\d+(?:[.,]\d+)*)((?:[ ]?{_SCALES})?)\b"
_UNTIL = r"(?:[ ]?[-—][ ]?(\d+(?:\.\d+)*))?"
MONEY = {
    "$": ("dollar", "cent"), "€": ("euro", "cent"), "£": ("pound", "penny"), "¥": ("yen", ""),
    "USD": ("US dollar", "cent"), "US$": ("US dollar", "cent"), "EUR": ("euro", "cent"),
    "GBP": ("pound", "penny"), "JPY": ("yen", ""), "CNY": ("yuan", ""), "CHF": ("Swiss franc", "centime"),
    "A$": ("Australian dollar", "cent"), "AUD": ("Australian dollar", "cent"), "INR": ("rupee", "paisa"),
    "C$": ("Canadian dollar", "cent"), "CAD": ("Canadian dollar", "cent"),
    "NZ$": ("New Zealand dollar", "cent"),
    "HK$": ("Hong Kong dollar", "cent"), "S$": ("Singapore dollar", "cent"), "SEK": ("Swedish krona", ""),
    "NOK": ("Norwegian krone", ""), "DKK": ("Danish krone", ""), "PLN": ("zloty", ""), "R$": ("real", ""),
    "BRL": ("real", ""), "KRW": ("won", ""), "₹": ("rupee", "paisa"), "₩": ("won", ""),
    "₽": ("rouble", "kopek"),
    "MXN": ("Mexican peso", ""), "CZK": ("Czech koruna", ""), "TRY": ("lira", ""), "ZAR": ("rand", ""),
}  # fmt: skip
_PLURALS = {
    "penny": "pence", "paisa": "paise", "Swedish krona": "Swedish kronor", "Danish krone": "Danish kroner",
    "Norwegian krone": "Norwegian kroner", "real": "reais", "yen": "yen", "yuan": "yuan", "won": "won",
    "rand": "rand",
}  # fmt: skip
_CURRENCY = "|".join(re.escape(name) for name in sorted(MONEY, key=len, reverse=True))
# A sign before an amount is `wetext`'s, unless a range, a scale or a country comes with it.
_PRICE_BEFORE = re.compile(rf"(?<!\w)({_CURRENCY})[ ]?{_AMOUNT}{_UNTIL}(?!\d|[.,]\d)")
_PRICE_AFTER = re.compile(
    rf"(?<![\w.,$€£¥])(?:(\d+(?:\.\d+)*)[ ]?[-—][ ]?)?{_AMOUNT}[ ]?({_CURRENCY})(?![\w$€£¥])"
)
_PIECE = re.compile(r"(\n+|(?<=[.!?;])\s+)")
_SIGN = re.compile("[" + re.escape("".join(SIGNS)) + "]")
_LETTER_AND_DIGIT = re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z]{5,})")
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MAX_CALL_CHARACTERS = 300  # characters that `wetext` gets at once


def normalize(text: str) -> str:
    """Return the text in words. Words with phonemes stay: `[café](/kæfˈA/)`."""
    parts = MARKUP.split(text)
    return "".join(part if at % 2 else _normalized(part) for at, part in enumerate(parts))


def fold(text: str) -> str:
    """Return the text with ligatures, wide and styled letters as plain ones, in any language."""
    return "".join(
        unicodedata.normalize("NFKC", c) if unicodedata.category(c)[0] == "L" or c.isdigit() else c
        for c in text
    )


def _normalized(text: str) -> str:
    text = _THIN_SPACE.sub("", unicodedata.normalize("NFC", text))
    text = _GREEK.sub(lambda match: unicodedata.name(match[0]).rpartition(" ")[2].lower(), text)
    text = _ADDRESS.sub(_address, "".join(map(_folded, text)))
    text = _DIGITS_ONLY.sub(_digits, text)
    text = _ROMAN.sub(lambda match: f"{match[1]} {_arabic(match[2])}", text)
    text = _REGNAL.sub(lambda match: f"{match[1]} the {_ordinal(_arabic(match[2]))}", text)
    text = _DECADE.sub(_decade, text)
    text = _ABBREVIATION.sub(lambda match: _SHORT[match[0]], text)
    text = _MONTH.sub(lambda match: f"{_MONTHS[match[1] or match[2]]} "[: None if match[1] else -1], text)
    text = _UNIT.sub(lambda match: f" {_UNITS[match[1]]}", text)
    text = _PRICE_AFTER.sub(lambda match: _price(match[4], match[2], match[3], match[1], match), text)
    text = _PRICE_BEFORE.sub(lambda match: _price(match[1], match[2], match[3], match[4], match), text)
    text = _MONEY.sub(_money, text)
    for rule, replacement in _RULES:
        text = rule.sub(replacement, text)
    text = _VERSION.sub(_version, _LONG.sub(lambda digits: " ".join(digits[0]), text))
    text = "".join(_in_words(piece) for piece in _PIECE.split(text))
    text = _NUMBER.sub(_number, text)
    text = _SIGN.sub(lambda sign: f" {SIGNS[sign[0]]} ", text)
    return re.sub(r"[ ]+(?=[.,;:!?)])", "", re.sub(r"[ \t]+", " ", text))


@functools.lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    """Return what stands for a character: itself, its name, or English letters."""
    if character.isascii():
        return FOLDED.get(character, character)
    if character in FOLDED:
        return FOLDED[character]
    if character in KEPT or unicodedata.category(character) in ("Cf", "Mn", "Cc"):
        return character if character in KEPT else ""
    if unicodedata.category(character) == "No" and "/" in (plain := _plain(character)):
        return f" {plain} "
    ascii_text = anyascii(_plain(character))
    if character.isspace():
        return " "
    if unicodedata.category(character)[0] == "S":  # emoji, as `:grinning:`; else its name
        is_symbol = ascii_text.strip().startswith(":")
        name = ascii_text if is_symbol else unicodedata.name(character, ascii_text).lower()
        return f" {name.strip(' :').replace('_', ' ').replace('-', ' ')} "
    return ascii_text


def _plain(character: str) -> str:
    return unicodedata.normalize("NFKC", character).replace("⁄", "/")


def _address(match: re.Match[str]) -> str:
    text = match[0].removeprefix("https://").removeprefix("http://")
    text = re.sub(r"^www\.", "w w w.", text)
    names = SIGNS | IN_ADDRESS
    return "".join(f" {names[c]} " if c in names else c for c in text)


def _digits(match: re.Match[str]) -> str:
    """Return a number for calls or books digit by digit, with a pause between its groups."""
    groups = re.findall(r"\d+", match[0].replace("(0)", ""))
    words = ", ".join(" ".join(DIGITS[int(digit)] for digit in group) for group in groups)
    return f"plus {words}" if match[0][0] == "+" else words


def _arabic(roman: str) -> int:
    values = [_NUMERALS[letter] for letter in roman]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


def _ordinal(number: int) -> str:
    teens = 10 < number % 100 < 20
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _decade(match: re.Match[str]) -> str:
    if match[1] == "20" and match[2] == "0":
        return "two thousands"
    return f"{match[1]} {_DECADES[int(match[2])]}"


def _price(currency: str, amount: str, scale: str, other: str | None, match: re.Match[str]) -> str:
    """Return an amount of money with the currency in words; the text where `wetext` reads it."""
    text = match[0]
    plain = text[0] in "$€£¥" and text[1].isdigit() and match.string[match.end() : match.end() + 1] != "/"
    if plain and not other and scale.strip() in ("", "mn", "bn"):
        return text
    if other and text[0].isdigit():
        amount, other = other, amount  # the range is written before its currency
    if text[-1] == "€" and re.fullmatch(r"\d{1,3}(?:\.\d{3})+", amount):
        amount = amount.replace(".", "")
    unit, part = MONEY[currency]
    if re.fullmatch(r"\d+,\d\d", amount):
        amount = amount.replace(",", ".")
    whole, _, fraction = amount.replace(",", "").partition(".")
    plural = _PLURALS.get(unit, unit + "s")
    scale = scale.strip()
    scale = {"mn": "million", "bn": "billion", "k": "thousand"}.get(scale, scale)
    if other:
        return f"{amount} to {other} {scale} {plural}".replace("  ", " ")
    if part and len(fraction) == len("00") and not scale:
        words = f"{whole} {unit if whole == '1' else plural}"
        cents = f"{int(fraction)} {part if fraction == '01' else _PLURALS.get(part, part + 's')}"
        return f"{words} and {cents}" if int(fraction) else words
    return f"{amount} {scale} {unit if amount == '1' and not scale else plural}".replace("  ", " ")


def _money(match: re.Match[str]) -> str:
    """Return 1,000 to 1,999.99 with its first digit in words, as `wetext` leaves it out."""
    rest = f"{match[2].lstrip('0') or ('0' if match[3] else '')}{match[3] or ''}"
    return f"one thousand {rest} {SIGNS[match[1]]}".replace("  ", " ")


def _version(match: re.Match[str]) -> str:
    parts = match[2].split(".")
    words = (" dot " if len(parts) == 4 and not match[1] else " point ").join(parts)
    return f"version {words}" if match[1] else words


def _in_words(piece: str) -> str:
    """Return a piece with its numbers in words."""
    if not any(map(str.isdigit, piece)):
        return piece
    if len(piece) <= MAX_CALL_CHARACTERS and (normalized := _wetext(piece)) is not None:
        before, after = piece[: len(piece) - len(piece.lstrip())], piece[len(piece.rstrip()) :]
        return f"{before}{normalized.strip()}{after}"
    words = []
    for word in piece.split(" "):
        normalized = (
            _wetext(word) if any(map(str.isdigit, word)) and len(word) <= MAX_CALL_CHARACTERS else word
        )
        words.append(_LETTER_AND_DIGIT.sub(" ", word) if normalized is None else normalized)
    return " ".join(words)


def _number(match: re.Match[str]) -> str:
    """Return a number that was not read where it stands, digit by digit if need be."""
    words = _wetext(match[0]) if len(match[0]) <= MAX_CALL_CHARACTERS else None
    if words is None or any(map(str.isdigit, words)):
        words = " ".join(DIGITS[int(digit)] if digit != "." else "point" for digit in match[0])
    return f" {words.strip()} "


def _wetext(text: str) -> str | None:
    """Return what `wetext` makes of it; None if it fails."""
    try:
        normalized: str = _normalizer().normalize(text)
    except Exception:  # noqa: BLE001  its grammars assert
        return None
    normalized = normalized.replace('\\"', '"')  # it escapes them
    return normalized if normalized.strip() else None


@functools.cache
def _normalizer() -> Any:
    import wetext

    return wetext.Normalizer(lang="en", operator="tn")
