"""The built-in corpus: what the Unicode CLDR says in two languages about one value.

Dates, times, numbers, amounts and names, formatted by `babel` for both locales, are genuine
parallel text that needs no download. The language is small and regular, so a small Transformer
learns it in minutes; dev and test hold new combinations of parts that train contains.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal

from babel import Locale, UnknownLocaleError
from babel.dates import (
    format_date,
    format_datetime,
    format_interval,
    format_skeleton,
    format_time,
    format_timedelta,
)
from babel.lists import format_list
from babel.numbers import format_compact_decimal, format_currency, format_decimal, format_percent
from babel.units import format_compound_unit, format_unit

from transformer_jax.errors import UserError

Pair = tuple[str, str]
Names = dict[str, list]
"""The keys of each inventory that have a name in both locales."""
Text = Callable[[Locale], str]
"""One value, to be formatted in any locale."""
Draw = Callable[[random.Random, Names], Text]
"""Draws a value at random."""

_SEED = 2017
_HELD_OUT = 500
"""Pairs in dev, and in test."""

# Few and usual names, so that each recurs in hundreds of combinations. Names that mean two
# things in English are left out (Latin is a language and a script: "Latein", "Lateinisch").
_INVENTORIES: Names = {
    "territories": """
        AF AL AM AO AR AT AU AZ BA BD BE BG BO BR BW BY CA CH CL CM CN CO CR CU CY CZ DE DK DZ EC
        EE EG ES ET FI FR GB GE GH GR GT HR HU ID IE IL IN IQ IR IS IT JM JO JP KE KH KR KW KZ LB
        LK LT LU LV LY MA MD MG MK MN MT MX MY MZ NA NG NL NO NP NZ OM PA PE PH PK PL PT PY QA RO
        RS RU SA SD SE SG SI SK SN SY TH TN TR TZ UA UG US UY UZ VE VN YE ZA ZM ZW""".split(),
    "languages": """
        af am ar az be bg bn bs ca cs cy da de el en es et eu fa fi fr ga gl gu he hi hr hu hy id
        is it ja ka kk km ko lo lt lv mk mn ms mt nl no pa pl pt ro ru sk sl sq sr sv sw ta te th
        tr uk ur uz vi zh zu""".split(),
    "currencies": """
        ARS AUD BRL CAD CHF CNY CZK DKK EGP EUR GBP HUF ILS INR JPY KRW MXN NOK NZD PLN RUB SEK
        THB TRY UAH USD ZAR""".split(),
    "scripts": "Brai Cyrl Deva Hang Latn".split(),
    "months": list(range(1, 13)),
    "days": list(range(7)),
}
_SYMBOLS = ("AUD", "BRL", "CAD", "CNY", "EUR", "GBP", "ILS", "INR", "JPY", "KRW", "MXN", "USD")
_UNITS = """
    length-meter length-kilometer length-centimeter length-mile mass-gram mass-kilogram
    mass-tonne volume-liter volume-cubic-meter area-hectare area-square-kilometer
    temperature-celsius speed-kilometer-per-hour power-watt power-kilowatt energy-kilowatt-hour
    digital-byte digital-megabyte duration-second duration-minute duration-hour duration-day
    duration-week duration-month duration-year electric-volt energy-kilocalorie""".split()
_SPANS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_LIST_LENGTHS = (2, 2, 3, 3, 4)
_LIST_STYLES = ("standard", "or")  # the two that babel has whole in every locale


def build_corpus(source_language: str = "en", target_language: str = "de") -> dict[str, list[Pair]]:
    """Returns the splits "train", "dev" and "test", each a list of (source, target) sentences.

    No source and no target occurs twice in the whole corpus, so the splits share neither and
    the translation of each sentence is unique. Single names are always in train. The result
    depends on the two languages and the version of the CLDR in `babel`, and on nothing else.

    Raises:
        UserError: a language is unknown to `babel`, both are the same, or the CLDR has too
            little text in one of them.
    """
    locales = _parse(source_language), _parse(target_language)
    if locales[0] == locales[1]:
        raise UserError(
            f"data.source_language and data.target_language are both {source_language!r}: "
            "the built-in corpus needs two languages"
        )
    names = _common_names(*locales)
    rng = random.Random(_SEED)
    unique = _Unique()
    singles = unique.take(_texts(_single_names(names), locales))
    composed = []
    for draw, count in _RECIPE:
        values = (draw(rng, names) for _ in range(count))
        composed += unique.take(_texts(values, locales))
    rng.shuffle(composed)
    dev, test = composed[:_HELD_OUT], composed[_HELD_OUT : 2 * _HELD_OUT]
    return {"train": singles + composed[2 * _HELD_OUT :], "dev": dev, "test": test}


def _parse(language: str) -> Locale:
    try:
        return Locale.parse(language.replace("-", "_"))
    except (UnknownLocaleError, ValueError):
        raise UserError(
            f"the built-in corpus does not know the language {language!r}: "
            "use a locale of the CLDR such as en, de or pt-BR"
        ) from None


class _Unique:
    """Lets through the first pair of each source and of each target."""

    def __init__(self) -> None:
        self._sources: set[str] = set()
        self._targets: set[str] = set()

    def take(self, pairs: Iterable[Pair]) -> list[Pair]:
        taken = []
        for source, target in pairs:
            if source not in self._sources and target not in self._targets:
                self._sources.add(source)
                self._targets.add(target)
                taken.append((source, target))
        return taken


def _texts(values: Iterable[Text], locales: tuple[Locale, Locale]) -> Iterator[Pair]:
    for value in values:
        source, target = (_plain_spaces(value(locale)) for locale in locales)
        yield source, target


def _plain_spaces(text: str) -> str:
    # The CLDR writes no-break and thin spaces (U+00A0, U+202F, U+2009), differently from locale to
    # locale and from version to version; scorers split at some of them only. split() knows all.
    return " ".join(text.split())


def _table(locale: Locale, kind: str) -> Mapping:
    table = getattr(locale, kind)
    return table["stand-alone"]["wide"] if kind in ("months", "days") else table


def _common_names(source: Locale, target: Locale) -> Names:
    names = {
        kind: [key for key in keys if key in _table(source, kind) and key in _table(target, kind)]
        for kind, keys in _INVENTORIES.items()
    }
    for kind, keys in names.items():
        if len(keys) < len(_INVENTORIES[kind]) / 2:
            raise UserError(
                f"the CLDR has only {len(keys)} names of {kind} in both {source} and {target}: "
                "choose other languages for the built-in corpus"
            )
    return names


def _name(kind: str, key: str | int) -> Text:
    return lambda locale: _table(locale, kind)[key]


def _single_names(names: Names) -> Iterator[Text]:
    return (_name(kind, key) for kind, keys in names.items() for key in keys)


def _listing(texts: list[Text], style: str) -> Text:
    return lambda locale: format_list([text(locale) for text in texts], style, locale)


def _name_list(kind: str) -> Draw:
    def draw(rng: random.Random, names: Names) -> Text:
        length = min(rng.choice(_LIST_LENGTHS), len(names[kind]))
        chosen = [_name(kind, key) for key in rng.sample(names[kind], length)]
        return _listing(chosen, rng.choice(_LIST_STYLES))

    return draw


def _language_variety(rng: random.Random, names: Names) -> Text:
    """As in "Serbian (Cyrillic, Serbia)"."""
    language = _name("languages", rng.choice(names["languages"]))
    parts = [_name("territories", rng.choice(names["territories"]))]
    if rng.random() < 0.3:
        parts.insert(0, _name("scripts", rng.choice(names["scripts"])))
    return lambda locale: f"{language(locale)} ({', '.join(part(locale) for part in parts)})"


def _moment(rng: random.Random) -> datetime:
    minutes = rng.randrange(24 * 12) * 5
    return datetime(1960, 1, 1) + timedelta(days=rng.randrange(70 * 365), minutes=minutes)


# "medium" is left out: in English it equals "long" in May only, in German never.
def _date(style: str) -> Draw:
    def draw(rng: random.Random, names: Names) -> Text:
        moment = _moment(rng)
        return lambda locale: format_date(moment, style, locale)

    return draw


def _skeleton(skeleton: str) -> Draw:
    def draw(rng: random.Random, names: Names) -> Text:
        moment = _moment(rng)
        return lambda locale: format_skeleton(skeleton, moment, locale=locale)

    return draw


def _day_list(rng: random.Random, names: Names) -> Text:
    days = [_skeleton("MMMMd")(rng, names) for _ in range(rng.choice((2, 2, 3)))]
    return _listing(days, rng.choice(_LIST_STYLES))


def _interval(skeleton: str, longest: timedelta) -> Draw:
    """From a moment to one that is up to `longest` later."""

    def draw(rng: random.Random, names: Names) -> Text:
        start = _moment(rng)
        end = start + longest * rng.randrange(1, 13) / 12
        return lambda locale: format_interval(start, end, skeleton, locale=locale)

    return draw


def _time(rng: random.Random, names: Names) -> Text:
    moment = _moment(rng)
    return lambda locale: format_time(moment, "short", locale=locale)


def _date_and_time(rng: random.Random, names: Names) -> Text:
    moment = _moment(rng)
    return lambda locale: format_datetime(moment, "short", locale=locale)


def _integer(rng: random.Random, most_digits: int) -> int:
    return rng.randrange(1, 10 ** rng.randint(1, most_digits))


def _amount(rng: random.Random) -> Decimal:
    """A small number, sometimes with one or two decimals."""
    return Decimal(_integer(rng, 4)).scaleb(-rng.choice((0, 0, 1, 2)))


def _decimal(rng: random.Random, names: Names) -> Text:
    number = Decimal(_integer(rng, 6)).scaleb(-rng.choice((0, 0, 1, 2)))
    return lambda locale: format_decimal(number, locale=locale)


def _compact(rng: random.Random, names: Names) -> Text:
    """As in "12 million"."""
    number = _integer(rng, 2) * 10 ** rng.choice((3, 6, 9, 12))
    return lambda locale: format_compact_decimal(number, format_type="long", locale=locale)


def _percent(rng: random.Random, names: Names) -> Text:
    share = Decimal(_integer(rng, 3)).scaleb(-2)
    return lambda locale: format_percent(share, locale=locale)


def _price(rng: random.Random, names: Names) -> Text:
    number, code = _amount(rng), rng.choice(_SYMBOLS)
    return lambda locale: format_currency(number, code, locale=locale)


def _named_price(rng: random.Random, names: Names) -> Text:
    number, code = _amount(rng), rng.choice(names["currencies"])
    return lambda locale: format_currency(number, code, locale=locale, format_type="name")


# Units are always "long": the English short form of a day is "day" again, the German one is "Tg.".
def _quantity(rng: random.Random, unit: str) -> Text:
    number = _amount(rng)
    return lambda locale: format_unit(number, unit, "long", locale=locale)


def _measure(rng: random.Random, names: Names) -> Text:
    return _quantity(rng, rng.choice(_UNITS))


def _measure_list(rng: random.Random, names: Names) -> Text:
    units = rng.sample(_UNITS, rng.choice((2, 2, 3)))
    return _listing([_quantity(rng, unit) for unit in units], rng.choice(_LIST_STYLES))


def _rate(rng: random.Random, names: Names) -> Text:
    """As in "12 liters per day"."""
    number = _amount(rng)
    unit = rng.choice([unit for unit in _UNITS if not unit.startswith(("duration", "speed"))])
    per = rng.choice(("duration-second", "duration-hour", "duration-day", "duration-week"))
    return lambda locale: format_compound_unit(
        number, unit, denominator_unit=per, length="long", locale=locale
    )


def _relative_time(rng: random.Random, names: Names) -> Text:
    """As in "in 3 days" and "3 days ago"."""
    span, seconds = rng.choice(list(_SPANS.items()))
    delta = timedelta(seconds=seconds * _integer(rng, 2)) * rng.choice((1, -1))
    return lambda locale: format_timedelta(delta, span, add_direction=True, locale=locale)


# What the corpus is made of, and how many draws of each; repeated draws are dropped. Digits are the
# smaller part: copying them takes a small model longer than learning the names.
_RECIPE: tuple[tuple[Draw, int], ...] = (
    (_name_list("territories"), 4500),
    (_name_list("languages"), 3000),
    (_name_list("currencies"), 2000),
    (_name_list("months"), 600),
    (_name_list("days"), 300),
    (_language_variety, 2500),
    (_date("full"), 2000),
    (_date("long"), 1500),
    (_date("short"), 800),
    (_skeleton("yMMMEd"), 1200),
    (_skeleton("yMMMM"), 600),
    (_skeleton("MMMMd"), 700),
    (_skeleton("yQQQQ"), 200),
    (_day_list, 1200),
    (_interval("yMMMd", timedelta(days=60)), 1000),
    (_interval("yMMMM", timedelta(days=400)), 500),
    (_interval("y", timedelta(days=8000)), 300),
    (_interval("Hm", timedelta(hours=8)), 500),
    (_time, 400),
    (_date_and_time, 800),
    (_decimal, 1200),
    (_compact, 300),
    (_percent, 400),
    (_price, 800),
    (_named_price, 1600),
    (_measure, 1800),
    (_measure_list, 1500),
    (_rate, 800),
    (_relative_time, 600),
)
