"""What English text to speech says of numbers, signs, units, addresses and letters that are not English."""

from __future__ import annotations

import pytest

from ovserve.kinds.voice.worker.normalize import normalize
from ovserve.llm.sentences import sentences

SAID = [  # and the words
    ("We met at the café, ﬁnally, in ｗｉｄｅ letters.", "We met at the cafe, finally, in wide letters."),
    ("rock & roll -- really", "rock and roll — really"),
    ("It is €50.", "It is fifty euros."),
    ("£3 and ¥100", "three pounds and one hundred yen"),
    ("5 $, 5$ and 3 EUR", "five dollars, five dollars and three euros"),
    ("5,50 € or 5.000 €", "five euros and fifty cents or five thousand euros"),
    (
        "$1500 million, A$20k",
        "fifteen hundred million dollars, twenty thousand Australian dollars",
    ),
    ("$5-10 or 5-10 $", "five to ten dollars or five to ten dollars"),
    ("$5/month, ₹500", "five dollars per month, five hundred rupees"),
    ("10-20%, 10-15 km, 1st-2nd", "ten to twenty percent, ten to fifteen kilometers, first to second"),
    (
        "12.03.2024 and 6/5/24",
        "the twelfth of march twenty twenty four and the fifth of june twenty twenty four",
    ),
    ("1 000 000 and 1.000.000", "one million and one million"),
    ("6.02e23, 2^10", "six point oh two times ten to the power of twenty three, two to the power of ten"),
    ("~5 of 3*4, 24/7", "about five of three times four, twenty-four seven"),
    (
        "call 555-1234 or +49 30 123",
        "call five five five, one two three four or plus four nine, three zero, one two three",
    ),
    ("World War II, Henry VIII, a book I read", "World War two, Henry the eighth, a book I read"),
    ("the 1990s, 5 A.M., 5 V", "the nineteen nineties, five AM., five volts"),
    ('5\'10" and "5"', 'five feet ten inches and "five"'),
    ("π, ∫ and 5 m/s", "pi, integral and five meters per second"),
    ("e.g. No. 5, 1.5M users", "for example number five, one point five M users"),
    ("It is −5.", "It is minus five."),
    ("-3.5 at -5 °C", "minus three point five at minus five degrees Celsius"),
    ("5 kg at 10 km/h", "five kilograms at ten kilometers per hour"),
    ("10 m and 5 m²", "ten meters and five meters squared"),
    ("40-60, 40–60 and 40 — 60", "forty to sixty, forty to sixty and forty to sixty"),
    ("$5-$10", "five dollars to ten dollars"),
    ("It cost $1.2 million.", "It cost one point two million dollars."),
    ("$1,234.56", "one thousand two hundred and thirty four point five six dollars"),
    ("20% off", "twenty percent off"),
    (
        "1,234.56 and 1,005",
        "one thousand two hundred and thirty four point five six and one thousand five",
    ),
    ("on 2026-11-26", "on the twenty sixth of november twenty twenty six"),
    ("at 14:30", "at fourteen thirty"),
    ("the 21st, 3/4 and 1½ cups", "the twenty first, three quarters and one and one half cups"),
    ("+1 (555) 123-4567", "plus one, five five five, one two three, four five six seven"),
    ("bob@example.com", "bob at example dot com"),
    ("https://example.com/a-b?x=1.", "example dot com slash a dash b question mark x equals one."),
    ("@alice #news #1", "at alice hashtag news number one"),
    ("1 + 1 = 2", "one plus one equals two"),
    ("A4 in 3D, v1.2.3", "A four in three D, version one point two point three"),
    ("AT&T, C++ and C#", "AT and T, C plus plus and C sharp"),
    ("Hello \U0001f600", "Hello grinning"),
    ("Москва, Zoë", "Moskva, Zoe"),
    ("**Bold** and `code`", "Bold and code"),
    ("12345678901234", "one two three four five six seven eight nine zero one two three four"),
    ("[the docs](http://a.b)", "(the docs) (a dot b)"),
    ("a [café](/kæfˈA/) x", "a [café](/kæfˈA/) x"),
    ("“It’s” naïve…", '"It\'s" naive…'),
]


def test_what_is_said(subtests: pytest.Subtests) -> None:
    for text, words in SAID:
        with subtests.test(text):
            assert normalize(text).strip() == words


@pytest.mark.parametrize(
    "text",
    [
        "USD 5, 5 EUR, 5 $",
        "#1 @5",
        "5×5÷2±1≤9≠√∞",
        "{[<5>]}",
        "a" * 400 + "5" * 12,
        "²³½",
        "5\x00\u200b5",
        "%%5%%$$",
    ],
)
def test_no_digit_is_left_to_the_library_and_nothing_raises(text: str) -> None:
    said = normalize(text)
    assert said.strip()
    assert not any(map(str.isdigit, said)), said
    assert said.isascii()


def test_sentences_and_paragraphs_stay() -> None:
    text = "It costs 5 $. That is 10% more.\n\n- One: 3 kg\n- Two: 4 kg"
    assert sentences(normalize(text)) == [
        "It costs five dollars.",
        "That is ten percent more.",
        "- One: three kilograms",
        "- Two: four kilograms",
    ]
