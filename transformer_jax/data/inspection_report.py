"""What an inspection says: a table to read, what looks wrong, and what makes training pointless."""

from collections.abc import Iterable, Iterator

from transformer_jax.data.findings import Distribution, Inspection, Part

# Shares above which training stops.
_MOST_COPIES = 0.5
_MOST_DROPPED = 0.9
_MOST_MISALIGNED = 0.1
_MOST_FOREIGN = 0.1

_TO_WARN = 0.01
_TO_WARN_OF_DUPLICATES = 0.1
_TO_WARN_OF_HELD_OUT = 0.05


def find_reasons(found: Inspection) -> list[str]:
    """Why training on this corpus would be meaningless, each in one line; empty where it is not."""
    return [*_reasons_of_all(found), *(r for n, p in found.parts.items() for r in _reasons(n, p))]


def _reasons_of_all(found: Inspection) -> Iterator[str]:
    part = found.overall
    if not part.pairs:
        yield "the corpus is empty: no pair was read"
        return
    lost = sum(part.dropped.values())
    if lost > _MOST_DROPPED:
        dropped = {why: round(share * part.pairs) for why, share in part.dropped.items()}
        why = ", ".join(f"{count} {why}" for why, count in dropped.items() if count)
        share = f"all {part.pairs}" if lost > 1 - 1e-9 else f"{_percent(lost)} of {part.pairs}"
        yield (
            f"{share} pairs would be dropped ({why}): raise data.max_length or "
            "data.max_length_ratio, or check the files"
        )
    if part.copies > _MOST_COPIES * part.pairs:
        yield (
            f"{part.copies} of {part.pairs} pairs have their source as their target: check that "
            "data.source_language and data.target_language name different texts"
        )


def _reasons(name: str, part: Part) -> Iterator[str]:
    source, target = part.source.foreign, part.target.foreign
    if min(source, target) > _MOST_FOREIGN:
        yield (
            f"{name}: the sides look swapped: {_percent(source)} of the source text reads like "
            f"dev's targets, {_percent(target)} of the target text like dev's sources; check "
            "data.source_language and data.target_language"
        )
    elif max(source, target) > _MOST_FOREIGN:
        side, other = ("source", "targets") if source > target else ("target", "sources")
        yield (
            f"{name}: {_percent(max(source, target))} of the {side} text reads like dev's {other}; "
            "check that each file holds its own language"
        )
    if part.misaligned > _MOST_MISALIGNED:
        yield (
            f"{name}: {_describe_misaligned(part)}; line i of one side must translate line i of "
            "the other"
        )


def _describe_misaligned(part: Part) -> str:
    how = "the sides do not seem to be translations of each other"
    if part.shift:
        how = f"source line i seems to go with target line i{part.shift:+d}"
    return (
        f"{_percent(part.misaligned)} of the text looks misaligned, first in the "
        f"thousand pairs from {part.first_misaligned} on: {how} "
        f"(alignment {part.alignment:.2f}, where parallel text has 0.2 or more)"
    )


def find_warnings(found: Inspection) -> list[str]:
    """What looks wrong but need not be, each in one line."""
    return [*_warnings_of_all(found), *(w for n, p in found.parts.items() for w in _warnings(n, p))]


def _warnings_of_all(found: Inspection) -> Iterator[str]:
    part = found.overall
    if part.duplicates > _TO_WARN_OF_DUPLICATES * part.pairs:
        yield f"{_counted(part.duplicates, part.pairs)} pairs are duplicates"
    for kind, side in (("sources", part.source), ("targets", part.target)):
        for name, count in side.held_out.items():
            if count > _TO_WARN_OF_HELD_OUT * found.held_out[name]:
                yield f"{count} {kind} of {name}'s {found.held_out[name]} pairs are in training too"


def _warnings(name: str, part: Part) -> Iterator[str]:
    if part.empty > _TO_WARN * part.pairs:
        yield f"{name}: {_counted(part.empty, part.pairs)} pairs have a blank side"
    if part.copies > _TO_WARN_OF_DUPLICATES * part.pairs:
        yield f"{name}: {_counted(part.copies, part.pairs)} pairs have their source as their target"
    for kind, side in (("source", part.source), ("target", part.target)):
        if side.other_script > _TO_WARN * part.pairs:
            letters = ", ".join(f"{s} {_percent(share)}" for s, share in side.letters.items())
            count = _counted(side.other_script, part.pairs)
            yield f"{name}: {count} {kind}s are in another script than most ({letters})"
        if side.fallback is not None and side.fallback > _TO_WARN:
            yield f"{name}: {_percent(side.fallback)} of the {kind} tokens are bytes or unknown"
    if 0 < part.misaligned <= _MOST_MISALIGNED:
        yield f"{name}: {_describe_misaligned(part)}"


def summarize(found: Inspection) -> list[str]:
    """The direction with two pairs, and what looks wrong, to print before training."""
    arrow = f"{found.source_language} -> {found.target_language}"
    lines = [f"direction {arrow}"]
    lines += show_pairs(found.examples)
    part = found.overall
    alignments = [p.alignment for p in found.parts.values() if p.alignment is not None]
    aligned = f"{min(alignments):.2f}" if alignments else "not measured, too few lines"
    lines.append(
        f"inspected {part.pairs} pairs: {part.duplicates} duplicates, {part.copies} copies, "
        f"{part.empty} with a blank side; alignment {aligned}"
    )
    return lines + [f"WARNING: {warning}" for warning in find_warnings(found)]


def show_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Sample pairs, each in two lines."""
    for number, (source, target) in enumerate(pairs, start=1):
        yield f"  pair {number}  {_shortened(source)}"
        yield f"     ->   {_shortened(target)}"


def describe(found: Inspection) -> list[str]:
    """The whole inspection as a table to read in a terminal, a string a line."""
    lines = [*_head(found), "", *_counts(found), "", *_sides(found)]
    if len(found.parts) > 1:
        lines += ["", *_table(found)]
    return [*lines, "", *(f"WARNING: {warning}" for warning in find_warnings(found))]


def _head(found: Inspection) -> Iterator[str]:
    part = found.overall
    yield (
        f"{found.source_language} -> {found.target_language}: {part.pairs} pairs from "
        f"{', '.join(found.parts)}"
    )
    yield from show_pairs(found.examples)
    yield f"* measured on a sample of {part.sampled} pairs; all else on every pair"


def _counts(found: Inspection) -> Iterator[str]:
    part = found.overall
    rows = {
        "a blank side": (part.empty, part.pairs),
        "duplicate pair": (part.duplicates, part.pairs),
        "same source, other target": (part.retranslated, part.pairs),
        "target = source": (part.copies, part.pairs),
        "numbers differ, of pairs with any": (part.other_numbers, part.with_numbers),
    }
    for name, (count, total) in rows.items():
        yield f"{name:36}{_counted(count, total):>20}"
    for name, share in part.dropped.items():
        yield f"{'lost to filter*: ' + name:36}{_percent(share):>20}"
    if not part.dropped:
        yield "tokens and filters: not measured, there is no tokenizer"
    yield f"{'target / source characters':36}  {_distributed(part.ratio, '.2f')}"


def _sides(found: Inspection) -> Iterator[str]:
    sides = (found.overall.source, found.overall.target)
    rows = {
        "": (found.source_language, found.target_language),
        "words a sentence": [_distributed(side.words, ".0f") for side in sides],
        "tokens a sentence*": [_distributed(side.tokens, ".0f") for side in sides],
        "tokens a word*": [_number(side.tokens_per_word) for side in sides],
        "bytes or unknown, of tokens*": [_percent(side.fallback) for side in sides],
        "letters*": [
            ", ".join(f"{name} {_percent(share)}" for name, share in list(side.letters.items())[:2])
            for side in sides
        ],
        "sentences in another script": [str(side.other_script) for side in sides],
        "language* (1: as in dev)": [_number(side.language) for side in sides],
    }
    for name, count in found.held_out.items():
        rows[f"met of {name}'s {count} sentences"] = [str(side.held_out[name]) for side in sides]
    for name, (source, target) in rows.items():
        yield f"{name:36}  {source:40}  {target}".rstrip()


def _table(found: Inspection) -> Iterator[str]:
    width = max(map(len, found.parts))
    heads = "pairs duplicates copies numbers lost* alignment* source* target*".split()
    yield f"{'':{width}}  " + "  ".join(f"{head:>10}" for head in heads)
    for name, part in found.parts.items():
        cells = [
            str(part.pairs),
            _percent(part.duplicates / max(1, part.pairs)),
            _percent(part.copies / max(1, part.pairs)),
            _percent(part.other_numbers / max(1, part.with_numbers)),
            _percent(sum(part.dropped.values()) if part.dropped else None),
            _number(part.alignment),
            _number(part.source.language),
            _number(part.target.language),
        ]
        yield f"{name:{width}}  " + "  ".join(f"{cell:>10}" for cell in cells)


def _shortened(sentence: str) -> str:
    return sentence if len(sentence) <= 100 else f"{sentence[:97]}..."


def _counted(count: int, total: int) -> str:
    return f"{count} ({_percent(count / max(1, total))})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _distributed(found: Distribution | None, form: str) -> str:
    if found is None:
        return "-"
    values = (found.median, found.percentile_1, found.percentile_99, found.largest)
    return "median {}, 98 % in {} to {}, most {}".format(*(f"{value:{form}}" for value in values))
