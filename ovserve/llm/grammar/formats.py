"""`format` of JSON schema as regular expressions: nearly every text that its document allows.

Left out is what only a table or a count over the whole can judge: labels that encode others (`xn--`), names
of many long labels, and most scripts of internationalized names. Other names of formats have no meaning here.
"""

from __future__ import annotations

from functools import cache

from ovserve.llm.grammar import patterns
from ovserve.llm.grammar.regular import Tree

_HEX = "[0-9a-fA-F]"

# ---- dates and times, of RFC 3339

_DAYS_28 = "(?:0[1-9]|1[0-9]|2[0-8])"
# Not the year 0, which the date types of most languages lack.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[1-9]|1[0-2])-{_DAYS_28}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    f"|{_LEAP_YEAR}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = "(?:\\.[0-9]{1,18})?"


# A leap second is the last one of a day in UTC; at other offsets it is left out.
_TIME = (
    f"(?:{_HOUR}:[0-5][0-9]:[0-5][0-9]{_FRACTION}(?:[zZ]|[+-]{_HOUR}:[0-5][0-9])"
    f"|23:59:60{_FRACTION}(?:[zZ]|[+-]00:00))"
)
_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DURATION = (
    f"P(?:[0-9]+W|{_CLOCK}|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:{_CLOCK})?)"
)

# ---- addresses and names of hosts

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_OCTET}(?:\\.{_OCTET}){{3}}"
_GROUP = f"{_HEX}{{1,4}}"


def _ipv6() -> str:
    """Return eight groups, of which the last two may be an IPv4 address, or fewer around one `::`."""
    forms = [f"(?:{_GROUP}:){{6}}(?:{_GROUP}:{_GROUP}|{_IPV4})"]
    for before in range(8):
        after = 7 - before  # groups at most
        groups_before = f"{_GROUP}(?::{_GROUP}){{{before - 1}}}" if before > 1 else _GROUP if before else ""
        right = f"(?:{_GROUP}(?::{_GROUP}){{0,{after - 1}}})?" if after else ""
        forms.append(f"{groups_before}::{right}")
        if after >= 2:
            forms.append(f"{groups_before}::(?:{_GROUP}:){{0,{after - 2}}}{_IPV4}")
    return "(?:" + "|".join(forms) + ")"


_IPV6 = _ipv6()


def _label(letters: str, most: int, first: str = "") -> str:
    """Return a label without hyphens in both its third and fourth place, which mark an encoded one."""
    one, inner = f"[{letters}]", f"[{letters}-]"
    return (
        f"[{first or letters}](?:{one}?|{inner}(?:-?{one}"
        f"|(?:-{one}|{one}{inner}?){inner}{{0,{most - 5}}}{one}))"
    )


_ALNUM = "a-zA-Z0-9"
_LABEL, _SHORT, _TOP = _label(_ALNUM, 63), _label(_ALNUM, 26), _label(_ALNUM, 26, "a-zA-Z")
# A name of several labels ends in one that begins with a letter, or it could be read as an address.
_HOST = f"{_LABEL}(?:(?:\\.{_SHORT}){{0,6}}\\.{_TOP})?"  # at most 253 characters
# Lower case of Latin, Greek and Cyrillic, kana, Han and Hangul; of 12 each, which is at most 63 when encoded.
_KANA_HAN = "\\u3005-\\u3007\\u3041-\\u3096\\u30a1-\\u30fa\\u30fc-\\u30fe\\u4e00-\\u9fa5"
_LETTERS = f"\\u00df-\\u00f6\\u00f8-\\u00ff\\u03ac-\\u03ce\\u0430-\\u045f{_KANA_HAN}\\uac00-\\ud7a3"
_MIDDLE_DOT = "\\u30fb[\\u3041-\\u3096\\u30a1-\\u30fa\\u4e00-\\u9fa5]{1,11}|l\\u00b7l"
# What RFC 5892 allows only next to certain letters: the Greek numeral sign, joiners after a virama.
_KERAIA = "(?:\\u0375?[\\u03ac-\\u03ce]){1,8}"
_DEVANAGARI = (
    "[\\u0904-\\u0939](?:[\\u0904-\\u0939\\u093e-\\u094c]|\\u094d(?:[\\u200c\\u200d][\\u0915-\\u0939])?){0,6}"
)
_PERSIAN_DIGITS = "[\\u06f0-\\u06f9][\\u06f0-\\u06f90-9]{0,9}"
_IDN_LABEL = (
    f"(?:{_LABEL}|[{_LETTERS}\\u0f0b]{{1,12}}|{_MIDDLE_DOT}|{_KERAIA}|{_DEVANAGARI}|{_PERSIAN_DIGITS})"
)
_IDN_SHORT = f"(?:{_SHORT}|[{_LETTERS}]{{1,12}})"
_DOT = "[.\\u3002\\uff0e\\uff61]"
# A name with a label from right to left has no label that begins with a digit (RFC 5893).
_HEBREW = "[\\u05d0-\\u05ea][\\u05d0-\\u05ea\\u05f3\\u05f4]{0,11}"
_ARABIC_LETTERS = "\\u0620-\\u063f\\u0641-\\u064a\\u06fd\\u06fe"
_JOINED = "[\\u0628\\u062a-\\u062e\\u0633-\\u063a\\u0641-\\u0647\\u064a]"  # on both sides
_ARABIC = f"[{_ARABIC_LETTERS}](?:[{_ARABIC_LETTERS}\\u0660-\\u0669]|{_JOINED}\\u200c{_JOINED}){{0,6}}"
_LEFTWARDS = f"(?:{_HEBREW}|{_ARABIC})"
_IDN_HOST = (
    f"(?:{_IDN_LABEL}(?:(?:{_DOT}{_IDN_SHORT}){{0,6}}{_DOT}(?:{_TOP}|[{_LETTERS}]{{1,12}}))?"
    f"|{_LEFTWARDS}(?:{_DOT}(?:{_LEFTWARDS}|{_TOP})){{0,3}})"
)

# ---- mail, of RFC 5321

_ATEXT = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_QUOTED = f'"[ .@{_ATEXT[1:]}{{1,62}}"'
_LOCAL = f"(?:{_ATEXT}{{1,16}}(?:\\.{_ATEXT}{{1,15}}){{0,3}}|{_ATEXT}{{17,64}}|{_QUOTED})"
_LITERAL = f"\\[(?:{_IPV4}|IPv6:{_IPV6})\\]"
_DOMAIN = f"(?:(?:{_SHORT}\\.){{0,6}}{_TOP}|{_LITERAL})"
_EMAIL = f"{_LOCAL}@{_DOMAIN}"
_WIDE = "\\u0080-\\ud7ff\\ue000-\\u{10ffff}"
_IDN_LOCAL = f'(?:{_LOCAL}|[{_WIDE}{_ATEXT[1:-1]}]{{1,16}}|"[{_WIDE} .@{_ATEXT[1:]}{{1,15}}")'
# Before normalization.
_COMPOSED = f"(?:{_SHORT}|(?:[{_LETTERS}a-z][\\u0300-\\u0304\\u0306-\\u030c]?){{1,12}})"
_IDN_EMAIL = f"{_IDN_LOCAL}@(?:{_DOMAIN}|(?:{_COMPOSED}\\.){{1,6}}{_IDN_SHORT})"

# ---- resources, of RFC 3986, 3987 and 6570


def _resource(wide: str, private: str, *, scheme: bool) -> str:
    """Return a URI or IRI; without a scheme, a reference. `wide`: characters beyond ASCII."""
    plain = f"a-zA-Z0-9._~!$&'()*+,;={wide}-"
    escape = f"%{_HEX}{{2}}"
    host = f"(?:\\[(?:{_IPV6}|[vV]{_HEX}+\\.[{plain[: -1 - len(wide)]}:-]+)\\]|(?:[{plain}]|{escape})*)"
    authority = f"//(?:(?:[:{plain}]|{escape})*@)?{host}(?::[0-9]*)?"
    segment = f"(?:[:@{plain}]|{escape})"
    path = f"(?:[/:@{plain}]|{escape})*"
    tail = f"(?:\\?(?:[/?:@{private}{plain}]|{escape})*)?(?:#(?:[/?:@{plain}]|{escape})*)?"
    rooted = f"/(?:{segment}{path})?"
    if scheme:
        return f"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{authority}(?:/{path})?|{rooted}|{segment}{path}|){tail}"
    first = f"(?:[@{plain}]|{escape})+"
    return f"(?:{authority}(?:/{path})?|{rooted}|{first}(?:/{path})?|){tail}"


_UCS = "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{1fffd}\\u{20000}-\\u{2fffd}"
_PRIVATE = "\\ue000-\\uf8ff\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"
_URI, _IRI = _resource("", "", scheme=True), _resource(_UCS, _PRIVATE, scheme=True)
_NAME = f"(?:[a-zA-Z0-9_]|%{_HEX}{{2}})"
_VARIABLE = f"{_NAME}(?:\\.?{_NAME})*(?:\\*|:[1-9][0-9]{{0,3}})?"
_TEMPLATE = (
    f"(?:[!#$&'()*+,./0-9:;=?@A-Z\\[\\]_a-z~{_UCS}{_PRIVATE}-]|%{_HEX}{{2}}"
    f"|\\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\\}})*"
)
_POINTER = "(?:/(?:[^/~]|~[01])*)*"


def _regex() -> str:
    """Return regular expressions of ECMA-262, with groups up to two levels deep; only the first one may have
    a name or be an assertion."""
    atom = "(?:[a-zA-Z0-9 _,:;=@#%&~<>/'\"!-]|\\.|\\\\(?:[dwsDWSntr.*+?^$()\\[\\]{}|/\\\\-]|c[A-Za-z])"
    atom += "|\\[\\^?(?:a-z|A-Z|0-9|[a-zA-Z0-9_ .,:;@#%+*/])*\\])"
    count = "(?:[*+?]|\\{[0-9]{1,3},?\\})?"
    inner = expression = f"(?:{atom}{count})*"
    for _ in range(2):
        expression = f"(?:(?:{atom}|\\((?:\\?:)?{expression}(?:\\|{expression})*\\)){count})*"
    first = f"\\(\\?(?:<[a-z][a-zA-Z0-9_]*>|<?[=!]){inner}\\)"
    return f"\\^?(?:{first})?{expression}\\$?"


EXPRESSIONS = {
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "duration": _DURATION,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "hostname": _HOST,
    "idn-hostname": _IDN_HOST,
    "uuid": f"{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}",
    "uri": _URI,
    "iri": _IRI,
    "uri-reference": f"(?:{_URI}|{_resource('', '', scheme=False)})",
    "iri-reference": f"(?:{_IRI}|{_resource(_UCS, _PRIVATE, scheme=False)})",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "regex": _regex(),
}

_NARROW, _NARROW_TOP = _label(_ALNUM, 15), _label(_ALNUM, 15, "a-zA-Z")
_SHORT_EMAIL = f"{_ATEXT}{{1,20}}(?:\\.{_ATEXT}{{1,20}})?@(?:{_NARROW}\\.){{1,3}}{_NARROW_TOP}"


def _short_resource(wide: str, *, scheme: bool) -> str:
    """Return a URI without escapes, users and addresses in brackets."""
    plain = f"a-zA-Z0-9._~!$&'()*+,;=@{wide}-"
    authority = f"//[a-zA-Z0-9.{wide}-]{{0,60}}(?::[0-9]{{1,5}})?"
    tail = f"(?:\\?[/?:{plain}]*)?(?:#[/?:{plain}]*)?"
    if scheme:
        return (
            f"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}:(?:{authority}(?:/[/:{plain}]*)?|[{plain}][/:{plain}]*|){tail}"
        )
    return (
        f"(?:{authority}(?:/[/:{plain}]*)?|/(?:[:{plain}][/:{plain}]*)?|[{plain}]+(?:/[/:{plain}]*)?|){tail}"
    )


# Shorter ones, for conjunctions: an automaton multiplies its counts with the states of the others.
_SHORTENED = {
    "email": _SHORT_EMAIL,
    "idn-email": _SHORT_EMAIL,
    "hostname": f"(?:{_NARROW}\\.){{0,3}}{_NARROW_TOP}",
    "idn-hostname": f"(?:{_NARROW}\\.){{0,3}}{_NARROW_TOP}",
    "uri": _short_resource("", scheme=True),
    "iri": _short_resource(_UCS, scheme=True),
    "uri-reference": f"(?:{_short_resource('', scheme=True)}|{_short_resource('', scheme=False)})",
    "iri-reference": f"(?:{_short_resource(_UCS, scheme=True)}|{_short_resource(_UCS, scheme=False)})",
}


def _within(name: str, most: int) -> str | None:
    """Return texts of a format in a few parts that share this length; None if it has room for all."""
    if name in ("email", "idn-email") and 10 <= most < 100:
        third = (most - 3) // 3
        label = f"[{_ALNUM}]{{1,{max(third // 2, 1)}}}"
        word = f"{_ATEXT}{{1,{max((third - 1) // 2, 1)}}}"
        return f"{word}(?:\\.{word})?@(?:{label}\\.){{1,2}}[a-zA-Z]{{2,{max(third - 1, 2)}}}"
    if name in ("hostname", "idn-hostname") and 4 <= most < 64:
        label = f"[{_ALNUM}](?:[{_ALNUM}-]{{0,1}}[{_ALNUM}]){{0,{max(most // 6 - 1, 0)}}}"
        return f"(?:{label}\\.){{0,2}}[a-zA-Z]{{1,{max(most // 3 - 2, 1)}}}"
    if name in ("uri", "iri", "uri-reference", "iri-reference") and 16 <= most < 254:
        half = (most - 9) // 2
        return f"https?://[a-zA-Z0-9.-]{{1,{half}}}(?:/[a-zA-Z0-9._~!$&'()*+,;=/?-]{{0,{half}}})?"
    if name == "ipv6" and 8 <= most < 45:
        groups = [f"(?:{_GROUP}:){{7}}{_GROUP}"] if most >= 39 else []
        few = min((most - 2) // 10, 3)
        pairs = f"{_GROUP}(?::{_GROUP}){{0,{few - 1}}}" if few > 0 else _GROUP[:-5]
        return "|".join([*groups, f"(?:{pairs})?::(?:{pairs})?"])
    return None


@cache
def tree(name: str, *, shortened: bool = False, most: int | None = None) -> Tree | None:
    """Return the expression of a format; None if the name has no meaning here.

    `most`: the length. Some texts are left out where several parts of them would have to share it."""
    expression = _within(name, most) if most is not None else None
    expression = expression or (_SHORTENED.get(name) if shortened else None) or EXPRESSIONS.get(name)
    return None if expression is None else patterns.read(expression)
