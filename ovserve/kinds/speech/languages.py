"""Languages by the codes that Whisper knows, and in every spelling in which clients name them."""

from __future__ import annotations

from collections.abc import Collection

from ovserve.errors import InvalidArgument

# Whisper's codes with their English names.
# Source: https://github.com/openai/whisper/blob/main/whisper/tokenizer.py, read 2026-11-22
NAMES = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian", "ko": "korean",
    "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish", "pl": "polish",
    "ca": "catalan", "nl": "dutch", "ar": "arabic", "sv": "swedish", "it": "italian",
    "id": "indonesian", "hi": "hindi", "fi": "finnish", "vi": "vietnamese", "he": "hebrew",
    "uk": "ukrainian", "el": "greek", "ms": "malay", "cs": "czech", "ro": "romanian", "da": "danish",
    "hu": "hungarian", "ta": "tamil", "no": "norwegian", "th": "thai", "ur": "urdu", "hr": "croatian",
    "bg": "bulgarian", "lt": "lithuanian", "la": "latin", "mi": "maori", "ml": "malayalam",
    "cy": "welsh", "sk": "slovak", "te": "telugu", "fa": "persian", "lv": "latvian", "bn": "bengali",
    "sr": "serbian", "az": "azerbaijani", "sl": "slovenian", "kn": "kannada", "et": "estonian",
    "mk": "macedonian", "br": "breton", "eu": "basque", "is": "icelandic", "hy": "armenian",
    "ne": "nepali", "mn": "mongolian", "bs": "bosnian", "kk": "kazakh", "sq": "albanian",
    "sw": "swahili", "gl": "galician", "mr": "marathi", "pa": "punjabi", "si": "sinhala", "km": "khmer",
    "sn": "shona", "yo": "yoruba", "so": "somali", "af": "afrikaans", "oc": "occitan", "ka": "georgian",
    "be": "belarusian", "tg": "tajik", "sd": "sindhi", "gu": "gujarati", "am": "amharic",
    "yi": "yiddish", "lo": "lao", "uz": "uzbek", "fo": "faroese", "ht": "haitian creole",
    "ps": "pashto", "tk": "turkmen", "nn": "nynorsk", "mt": "maltese", "sa": "sanskrit",
    "lb": "luxembourgish", "my": "myanmar", "bo": "tibetan", "tl": "tagalog", "mg": "malagasy",
    "as": "assamese", "tt": "tatar", "haw": "hawaiian", "ln": "lingala", "ha": "hausa", "ba": "bashkir",
    "jw": "javanese", "su": "sundanese", "yue": "cantonese",
}  # fmt: skip
OTHER_NAMES = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb",
    "pushto": "ps", "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si",
    "castilian": "es", "mandarin": "zh", "farsi": "fa", "filipino": "tl", "modern greek": "el",
    "bokmal": "no", "jv": "jw", "iw": "he", "in": "id", "ji": "yi", "nb": "no", "fil": "tl",
    "cmn": "zh",
}  # fmt: skip
# ISO 639-3, and 639-2 where it differs, for the codes above.
THREE = {
    "eng": "en", "zho": "zh", "chi": "zh", "deu": "de", "ger": "de", "spa": "es", "rus": "ru",
    "kor": "ko", "fra": "fr", "fre": "fr", "jpn": "ja", "por": "pt", "tur": "tr", "pol": "pl",
    "cat": "ca", "nld": "nl", "dut": "nl", "ara": "ar", "swe": "sv", "ita": "it", "ind": "id",
    "hin": "hi", "fin": "fi", "vie": "vi", "heb": "he", "ukr": "uk", "ell": "el", "gre": "el",
    "msa": "ms", "may": "ms", "ces": "cs", "cze": "cs", "ron": "ro", "rum": "ro", "dan": "da",
    "hun": "hu", "tam": "ta", "nor": "no", "nob": "no", "tha": "th", "urd": "ur", "hrv": "hr",
    "bul": "bg", "lit": "lt", "lat": "la", "mri": "mi", "mao": "mi", "mal": "ml", "cym": "cy",
    "wel": "cy", "slk": "sk", "slo": "sk", "tel": "te", "fas": "fa", "per": "fa", "lav": "lv",
    "ben": "bn", "srp": "sr", "aze": "az", "slv": "sl", "kan": "kn", "est": "et", "mkd": "mk",
    "mac": "mk", "bre": "br", "eus": "eu", "baq": "eu", "isl": "is", "ice": "is", "hye": "hy",
    "arm": "hy", "nep": "ne", "mon": "mn", "bos": "bs", "kaz": "kk", "sqi": "sq", "alb": "sq",
    "swa": "sw", "glg": "gl", "mar": "mr", "pan": "pa", "sin": "si", "khm": "km", "sna": "sn",
    "yor": "yo", "som": "so", "afr": "af", "oci": "oc", "kat": "ka", "geo": "ka", "bel": "be",
    "tgk": "tg", "snd": "sd", "guj": "gu", "amh": "am", "yid": "yi", "lao": "lo", "uzb": "uz",
    "fao": "fo", "hat": "ht", "pus": "ps", "tuk": "tk", "nno": "nn", "mlt": "mt", "san": "sa",
    "ltz": "lb", "mya": "my", "bur": "my", "bod": "bo", "tib": "bo", "tgl": "tl", "mlg": "mg",
    "asm": "as", "tat": "tt", "lin": "ln", "hau": "ha", "bak": "ba", "jav": "jw", "sun": "su",
}  # fmt: skip
CODES = {name: code for code, name in NAMES.items()} | OTHER_NAMES | THREE


def language_code(text: str, codes: Collection[str], *, multilingual: bool) -> str:
    """Return the model's code of a language: a code, a locale or an English name, in any case.

    `codes` are those of the model. Raises InvalidArgument, also for another language than English if the
    model is not multilingual.
    """
    plain = text.strip().strip("<|>").lower().replace("_", "-")
    code = next((c for c in (plain, CODES.get(plain, ""), _of_locale(plain)) if c in (codes or NAMES)), "")
    if not multilingual:
        if "en" not in (plain, CODES.get(plain), _of_locale(plain)):
            raise InvalidArgument.at("language", f"the model knows English only, got {text!r}")
        return ""
    if not code:
        raise InvalidArgument(
            f"language: {text[:40]!r} is not known to the model; it knows "
            + ", ".join(sorted(codes or NAMES)),
            param="language",
        )
    return code


def language_name(code: str) -> str:
    """Return the English name; the code itself for one that is not known."""
    return NAMES.get(code, code)


def _of_locale(text: str) -> str:
    """pt of pt-br; yue of zh-yue is not made."""
    first = text.partition("-")[0]
    return CODES.get(first, first) if "-" in text else ""
