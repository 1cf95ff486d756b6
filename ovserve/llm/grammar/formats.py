"""`format` of JSON schema as EBNF of a string's content. Each is a subset that validators agree on.

No character needs escaping in JSON.
"""

from __future__ import annotations

_HEX = "[0-9a-fA-F]"
_ALNUM = "[a-zA-Z0-9]"
_LABEL = f'{_ALNUM}{{1,20}} ("-" {_ALNUM}{{1,20}}){{0,2}}'
# The last label begins with a letter, or the whole could be read as an address.
_HOST = f'({_LABEL} "."){{0,3}} [a-zA-Z] {_ALNUM}{{0,19}} ("-" {_ALNUM}{{1,20}}){{0,2}}'
_ATOM = "[a-zA-Z0-9_+]{1,20}"
_EMAIL = f'{_ATOM} ([.-] {_ATOM}){{0,2}} "@" {_HOST}'

_YEAR = "[0-9]{4}"
_LEAP = '([0-9]{2} ("0" [48] | [2468] [048] | [13579] [26]) | ("0" [048] | [2468] [048] | [13579] [26]) "00")'
_DAY_28 = '("0" [1-9] | "1" [0-9] | "2" [0-8])'
_DATE = (
    f'({_YEAR} "-" (("0" [1-9] | "1" [0-2]) "-" {_DAY_28}'
    ' | ("0" [13-9] | "1" [0-2]) "-" ("29" | "30") | ("0" [13578] | "10" | "12") "-31")'
    f' | {_LEAP} "-02-29")'
)
_HOUR = '("0" [0-9] | "1" [0-9] | "2" [0-3])'
_TIME = f'{_HOUR} ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{{1,6}})? ("Z" | [+-] {_HOUR} ":" [0-5] [0-9])'
_N = "[0-9]{1,4}"
_CLOCK = f'"T" ({_N} "H" ({_N} "M" ({_N} "S")?)? | {_N} "M" ({_N} "S")? | {_N} "S")'
_DURATION = (
    f'"P" ({_N} "W" | {_CLOCK}'
    f' | ({_N} "Y" ({_N} "M" ({_N} "D")?)? | {_N} "M" ({_N} "D")? | {_N} "D") ({_CLOCK})?)'
)
_OCTET = '("25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9]? [0-9])'
_IPV4 = f'{_OCTET} "." {_OCTET} "." {_OCTET} "." {_OCTET}'
_GROUP = f"{_HEX}{{1,4}}"


def _ipv6() -> str:
    """Return EBNF of eight groups, or fewer around one `::`."""
    found = [f'({_GROUP} ":"){{7}} {_GROUP}']
    for before in range(8):
        after = 7 - before
        left = f'{_GROUP} (":" {_GROUP}){{{before - 1}}} ' if before > 1 else f"{_GROUP} " if before else ""
        right = (
            f' ({_GROUP} (":" {_GROUP}){{0,{after - 1}}})?' if after > 1 else f" ({_GROUP})?" if after else ""
        )
        found.append(f'{left}"::"{right}')
    return " | ".join(found)


_UNRESERVED = "[a-zA-Z0-9_.~-]"
_PCHAR = f'({_UNRESERVED} | [:@!$&()*+,;=] | "%" {_HEX} {_HEX})'
_NO_COLON = f'({_UNRESERVED} | [@!$&()*+,;=] | "%" {_HEX} {_HEX})'
_TAIL = f'("/" {_PCHAR}*)* ("?" ({_PCHAR} | [/?])*)? ("#" ({_PCHAR} | [/?])*)?'
_AUTHORITY = f'"//" {_HOST} (":" [1-9] [0-9]{{0,3}})? {_TAIL}'
_URI = f'[a-zA-Z] [a-zA-Z0-9+.-]{{0,15}} ":" ({_AUTHORITY} | "/"? {_PCHAR}+ {_TAIL})'
_RELATIVE = f'{_AUTHORITY} | {_NO_COLON}+ {_TAIL} | "/" ({_PCHAR}+ {_TAIL})? | "#" ({_PCHAR} | [/?])*'
_VARIABLE = '[a-zA-Z_] [a-zA-Z0-9_]* ("*" | ":" [1-9] [0-9]{0,2})?'
_TEMPLATE = (
    f'({_UNRESERVED} | [/:?&=#@,;+] | "%" {_HEX} {_HEX}'
    f' | "{{" [+#./;?&]? {_VARIABLE} ("," {_VARIABLE})* "}}")*'
)
_POINTER = '("/" ([a-zA-Z0-9 _.:,!$&()*+;=?@^{}<>|#-] | [\\u00a1-\\u024f] | "~" [01])*)*'

EXPRESSIONS = {
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "duration": _DURATION,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "hostname": _HOST,
    "idn-hostname": _HOST,
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}',
    "uri": _URI,
    "iri": _URI,
    "uri-reference": f"{_URI} | {_RELATIVE}",
    "iri-reference": f"{_URI} | {_RELATIVE}",
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f'("0" | [1-9] [0-9]{{0,8}}) ("#" | {_POINTER})',
}
