"""`explain`: how each published value of a job came about, and the record."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Final

from publisher.cli.commands import Context, load_part
from publisher.cli.output import Json, Part, TextTable, attributes, print_result
from publisher.cli.parser import add_job, add_json, add_targets
from publisher.reporting import explain as explaining
from publisher.reporting.explain import ExplainedCharge, ExplainedValue, Explanation

_COLUMNS: Final = ("value", "published as", "rule", "field of the job")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument("--format", metavar="F", help="another format than the target's own")
    add_targets(parser)
    add_json(parser)


def run(arguments: argparse.Namespace, context: Context) -> int:
    site = context.load()
    job_id, found = explaining.explain(
        site, arguments.job, targets=arguments.target, format_name=arguments.format
    )
    print_result(
        found,
        lambda each: {"job": job_id, "explanations": list(map(_explanation_json, each))},
        _as_text,
        form=arguments.form,
        rows="explanations",
    )
    return 0


def _explanation_json(one: Explanation) -> Json:
    origin = one.origin
    return {
        **attributes(one, "target", "format"),
        **attributes(one.row, "database", "record_id"),
        **attributes(one, "local_id", "fate", "reason"),
        "values": list(map(_value_json, one.values)),
        "warnings": dict(one.oddities),
        "mends": dict(one.altered),
        "record": one.record or None,
        "unfit": one.unfit or None,
        "group_jobs": one.group_jobs,
        "charge": one.charge and _charge_json(one.charge),
        "origin": origin
        and {"importer": origin.importer, "record": origin.key, "file": origin.file or None},
        "imported": [{"field": field, "rule": rule} for field, rule in one.imported] or None,
    }


def _value_json(each: ExplainedValue) -> Json:
    value, field = each.value or None, each.source or None
    return {"name": each.name, "value": value, "rule": each.rule, "field": field}


def _charge_json(charge: ExplainedCharge) -> Json:
    return {
        "rule": charge.place,
        "formula": charge.formula,
        "quantities": [
            {"name": name, "value": value or None, "field": field}
            for name, value, field in charge.quantities
        ],
        "amount": charge.amount or None,
        "unit": charge.unit,
        "reason": charge.reason or None,
        "published": charge.published,
    }


def _as_text(found: Sequence[Explanation]) -> Iterator[Part]:
    for one in found:
        yield f"target {one.target}, format {one.format}"
        yield f"row {one.row.record_id} of {one.row.database}, batch id {one.local_id or 'none'}"
        yield f"{one.fate}: {one.reason}"
        if one.values:
            rows = [(it.name, it.value or "-", it.rule, it.source or "-") for it in one.values]
            yield TextTable(_COLUMNS, rows)
        yield from _notes(one)
        yield from _indented(one.record).splitlines()
        yield ""


def _indented(record: str) -> str:
    """Return a record in XML with an element a line, another one as it is."""
    if not record.startswith("<"):
        return record
    text: str = load_part("formats.xml.indent").indented(record)
    return text


def _notes(one: Explanation) -> list[str]:
    """What is odd about it, and which of the job's values the record leaves out."""
    notes = [f"odd, but accepted: {name}: {text}" for name, text in one.oddities]
    notes += [f"published differently: {name}: {text}" for name, text in one.altered]
    if one.unfit:
        notes.append(f"no record can be made: {one.unfit}")
    if one.origin is not None:
        read_from = f", read from {one.origin.file}" if one.origin.file else ""
        notes.append(f"origin: {one.origin.importer} record {one.origin.key}{read_from}")
    imported = "imported: " if one.origin else ""
    notes += [f"{imported}{field}: {rule}" for field, rule in one.imported]
    notes += _charge_notes(one.charge)
    if one.group_jobs is not None:
        group = f"its group has {one.group_jobs:,} jobs by now"
        notes.append(f"the record shows this job alone; {group}")
    return notes


def _charge_notes(charge: ExplainedCharge | None) -> list[str]:
    if charge is None:
        return []
    lines = [f"charge: {charge.formula}  ({charge.place})"]
    for name, value, field in charge.quantities:
        lines.append(f"  {name} = {value or 'not known'}  ({field})")
    result = f"{charge.amount} {charge.unit}" if charge.amount else "no charge"
    if charge.reason:
        result += f": {charge.reason}"
    if charge.amount and not charge.published:
        result += "; this format has no field for it"
    return [*lines, f"  = {result}"]
