"""Formats of JSON Schema as regular expressions, and its patterns in the dialect of llguidance.

Text in, text out. Only what llguidance itself reads too widely or too narrowly is here.
"""

_DAY = ("(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
        "|02-(?:0[1-9]|1[0-9]|2[0-8]))")
_LEAP_YEAR = ("(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
              "|(?:[02468][048]|[13579][26])00)")
_DATE = f"(?:[0-9]{{4}}-{_DAY}|{_LEAP_YEAR}-02-29)"
# the standards bound no run of digits, and a small model writes them for ever
_FRACTION = r"(?:\.[0-9]{1,18})?"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"


def _leap_second() -> str:
    """23:59:60 UTC, in every offset that is whole quarters of an hour. RFC 3339, 5.6 and 5.7."""
    found = []
    for offset in range(0, 24 * 60, 15):
        # local = UTC + east = UTC - west
        local = (23 * 60 + 59 + offset) % 1440
        west = (1440 - offset) % 1440
        zones = rf"(?:\+{_hhmm(offset)}|-{_hhmm(west)}{'|[Zz]' if not offset else ''})"
        found.append(f"{_hhmm(local)}:60{_FRACTION}{zones}")
    return "|".join(found)


def _hhmm(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


_TIME = f"(?:{_CLOCK}:[0-5][0-9]{_FRACTION}(?:[Zz]|[+-]{_CLOCK})|{_leap_second()})"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_H = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_H}:{_H}|{_IPV4})"
# RFC 4291, 2.2: eight groups, "::" for one run of zeros, the last two groups as IPv4
_IPV6 = "(?:" + "|".join((
    f"(?:{_H}:){{6}}{_LAST}", f"::(?:{_H}:){{5}}{_LAST}", f"(?:{_H})?::(?:{_H}:){{4}}{_LAST}",
    *(f"(?:(?:{_H}:){{0,{n}}}{_H})?::(?:{_H}:){{{3 - n + 1}}}{_LAST}" for n in (1, 2, 3)),
    f"(?:(?:{_H}:){{0,4}}{_H})?::{_LAST}", f"(?:(?:{_H}:){{0,5}}{_H})?::{_H}",
    f"(?:(?:{_H}:){{0,6}}{_H})?::",
)) + ")"

# RFC 5321, 4.1.2 and 4.1.3. The repetitions are bounded, so that outputs end: ten parts on either
# side of the @ are more than addresses have.
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,64}"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~]){0,62}"'
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = (rf"(?:{_ATOM}(?:\.{_ATOM}){{0,9}}|{_QUOTED})"
          rf"@(?:{_LABEL}(?:\.{_LABEL}){{0,9}}|\[(?:{_IPV4}|IPv6:{_IPV6})\])")

# RFC 3339, appendix A
_N = "[0-9]{1,99}"
_HOURS = f"(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS = f"(?:{_N}D|{_N}M(?:{_N}D)?|{_N}Y(?:{_N}M(?:{_N}D)?)?)"
_DURATION = f"P(?:{_N}W|{_DAYS}(?:T{_HOURS})?|T{_HOURS})"

FORMATS: dict[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}[Tt]{_TIME}$",
    "ipv6": f"^{_IPV6}$",
    "email": f"^{_EMAIL}$",
    "duration": f"^{_DURATION}$",
}

# white space of ECMA 262: unlike elsewhere the byte order mark, and not U+0085
_SPACES = "\\t\\n\\x0b\\x0c\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"


def ecma_pattern(pattern: str) -> str:
    """A pattern as JSON Schema means it (ECMA 262) in the regular expressions of llguidance."""
    found: list[str] = []
    in_class = False
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if char == "\\" and i + 1 < len(pattern):
            escape = pattern[i: i + 2]
            i += 2
            if escape == "\\s":
                found.append(_SPACES if in_class else f"[{_SPACES}]")
            elif escape == "\\S":
                found.append(f"[^{_SPACES}]")  # a class may hold another one
            else:
                found.append(escape)
            continue
        if char == "[":
            # within a class it is an ordinary character
            found.append("\\[" if in_class else "[")
            in_class = True
        elif in_class and char in "&~" and pattern[i + 1: i + 2] == char:
            found.append("\\" + char)  # doubled it would be an operation on sets
        else:
            found.append(char)
            in_class = in_class and char != "]"
        i += 1
    return "".join(found)
