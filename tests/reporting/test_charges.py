"""Formulas of charges: every oracle value of the original, every way to be wrong, and random ones against another evaluator."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal, localcontext
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from publisher.model.job import Epoch
from publisher.model.rates import amount_text
from publisher.model.time import Window
from publisher.reporting.charges.formula import (
    DECIMAL,
    DIGITS,
    MAX_CHARACTERS,
    MAX_DEPTH,
    FormulaError,
    NoResult,
    bind,
    parse,
)
from publisher.reporting.charges.heappe import HEAPPE
from publisher.reporting.charges.rules import (
    QUANTITIES,
    ChargeRule,
    Charges,
    Compatibility,
    Formula,
    OnError,
    QuantityKind,
    Rounding,
    TimeUnit,
    overlaps,
)
from tests.support.jobs import ENDED, make_job
from tests.support.patience import bounded
from tests.support.strategies import examples

# The job of the oracle values: NumNodes 2, NumCPUs 256, NumTasks 16, RunTime 10:30:00, gres_gpu 8, SecsPreSuspend 0.
ORACLE_JOB = make_job(
    node_count=2, cpu_count=256, wall_s=37_800, gpu_count=8, quantities=(("NumTasks", 16), ("SecsPreSuspend", 0))
)
# Measured on the engine of the original.
ORACLE = (
    ("((NumNodes * RunTime) / 60) * 1.2 + 25", "25.42"),
    ("NumNodes * RunTime", "21"),
    ("NumNodes * RunTime / 8", "2.625"),
    ("NumCPUs*RunTime", "2688"),
    ("gres_gpu*RunTime*0.25", "21"),
    ("NumCPUs%100*2", "56"),
    ("3--5", "8"),
    ("2*-3", "-6"),
    ("-7%3", "-1"),
    ("1/3", "0.3333333333333333"),
    ("2+10%4", "4"),
    ("10%4*3", "10"),
    ("7/2", "3.5"),
    ("RunTime", "10.5"),
    ("StartTime", "0"),
    ("EndTime - SubmitTime", "0"),
    ("NumTasks + SecsPreSuspend", "16"),
)


def rule(text: str, **overrides: Any) -> ChargeRule:
    made: dict[str, Any] = {"formula": Formula.read(text, overrides.get("compat", Compatibility.NONE)), "unit": "CPUh"}
    return ChargeRule(**(made | overrides))


def heappe(text: str, **overrides: Any) -> ChargeRule:
    return rule(text, compat=Compatibility.HEAPPE, **({"places": None} | overrides))


@pytest.mark.parametrize(("formula", "result"), ORACLE)
def test_the_original_s_results_come_out_digit_by_digit(formula: str, result: str) -> None:
    assert amount_text(heappe(formula).amount(ORACLE_JOB)) == result


@pytest.mark.parametrize(
    ("wall_s", "hours"),
    [(600, "0.16666666666666666"), (37_800, "10.5"), (86_399, "23.99972222222222"), (86_400, "0"), (200_000, "0")],
)
def test_the_original_s_run_time_is_hours_and_none_from_a_day_on(wall_s: int, hours: str) -> None:
    assert amount_text(heappe("RunTime").amount(make_job(wall_s=wall_s))) == hours


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("1/0", "the result is not a finite number"),
        ("0/0", "the result is not a finite number"),
        ("1.0/0", "division by zero"),
        ("5%0", "division by zero"),
        ("7.5%2", "% of a fraction is an error in the original"),
        ("100000*100000", "a whole number of more than 32 bits is an error in the original"),
        ("1e8 * 1e7", "the result is too large"),
        ("9999999999999999.0*9999999999999999.0", "a decimal of more than 96 bits is an error in the original"),
    ],
)
def test_what_is_an_error_in_the_original_is_no_charge(formula: str, reason: str) -> None:
    with pytest.raises(NoResult, match=reason):
        heappe(formula).amount(ORACLE_JOB)


def test_the_original_s_decimals_have_28_places_and_round_half_even() -> None:
    def value(text: str) -> Any:
        return bind(parse(text, QUANTITIES), HEAPPE)({})

    assert value("2.0/3") == Decimal("0.6666666666666666666666666667")
    assert value("0.00000000000001*0.000000000000005") == Decimal(0)
    assert value("0.00000000000001*0.000000000000015") == Decimal("2E-28")
    assert value("123456789012345678901234.5678*10.01") == Decimal("1235802458013580245801358.0237")
    assert isinstance(value("1/3*0.5"), float)


@pytest.mark.parametrize(
    ("formula", "result"),
    [
        ("3000000000", "3000000000"),
        ("NumNodes + 3000000000", "3000000002"),
        ("-2147483648", "-2147483648"),
        ("3000000000 * 100", "300000000000"),
        ("3000000000 / 4", "750000000"),
        ("7000000001 % 1000", "1"),
        ("-7000000003 % 1000", "-3"),
        ("9223372036854775807 - 9223372036854775806", "1"),
        ("9223372036854775808 / 1e10", "922337203.6854776"),
        ("3000000000 * 0.5", "1500000000"),
        (".1 + .2", "0.30000000000000004"),
        ("0.1 + 0.2", "0.3"),
    ],
)
def test_whole_literals_beyond_32_bits_are_reckoned_as_in_the_original(formula: str, result: str) -> None:
    assert Decimal(amount_text(heappe(formula).amount(ORACLE_JOB))) == Decimal(result)


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("9223372036854775807 + 1", "more than 64 bits is an error in the original"),
        ("3000000000 * 9000000000", "more than 64 bits is an error in the original"),
        ("9223372036854775808 % 2", "% of a fraction is an error in the original"),
        (".5/0", "the result is not a finite number"),
    ],
)
def test_of_64_bits_what_is_an_error_in_the_original_is_no_charge(formula: str, reason: str) -> None:
    with pytest.raises(NoResult, match=reason):
        heappe(formula).amount(ORACLE_JOB)


def test_a_decimal_of_the_original_is_refused_when_it_has_no_room() -> None:
    with pytest.raises(FormulaError, match=r"96 bits is an error in the original \(position 3\)"):
        Formula.read("1-99999999999999999999999999999.0", Compatibility.HEAPPE)
    assert Formula.read("NumNodes + 3000000000").quantities == ("NumNodes",)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("7.5%2", "1.5"),
        ("-7%3", "-1"),
        ("7%-3", "1"),
        ("10%4*3", "10"),
        ("2+10%4", "4"),
        ("2-3-4", "-5"),
        ("100/10/2", "5"),
        ("2*(3+4)", "14"),
        ("- - 3", "3"),
        ("+3 - +2", "1"),
        (".5 + 5.", "5.5"),
        ("1e3 + 2.5E-1", "1000.25"),
        ("100000*100000", "10000000000"),
        ("((1))", "1"),
        ("1/3", "0." + "3" * DIGITS),
    ],
)
def test_formulas_of_ours_are_decimal(formula: str, value: str) -> None:
    assert bind(parse(formula, QUANTITIES), DECIMAL)({}) == Decimal(value)


@pytest.mark.parametrize(
    ("formula", "at", "what"),
    [
        ("NumNodes * RunTme", 11, "unknown quantity 'RunTme'; did you mean RunTime?"),
        ("numnodes * 2", 0, "did you mean NumNodes?"),
        ("gresgpu", 0, "did you mean gres_gpu?"),
        ("Num_CPUs", 0, "did you mean NumCPUs?"),
        ("x + 1", 0, "unknown quantity 'x'; there are NumNodes, NumCPUs"),
        ("", 0, "the formula is empty"),
        ("   ", 3, "the formula is empty"),
        ("2 +", 3, "the formula ends where a name or a number is expected"),
        ("2 + * 3", 4, "a name or a number is expected here, not '*'"),
        ("2 ** 3", 3, "there are no powers"),
        ("2 ^ 3", 2, "there are no powers; multiply"),
        ("(2 + 3", 6, "a parenthesis is not closed"),
        ("2 + 3)", 5, "this parenthesis was never opened"),
        ("(2 3)", 3, "an operator or ) is missing here"),
        ("2 3", 2, "an operator is missing before 3"),
        ("2 RunTime", 2, "an operator is missing before RunTime"),
        ("1.2.3", 3, "an operator is missing before .3"),
        ("()", 1, "a name or a number is expected here, not ')'"),
        ("max(1)", 0, "there are no functions; max cannot be called"),
        ("NumNodes.real", 8, "'.' is not part of a formula"),
        ("0,25 * cpu", 1, "numbers have a point, as in 0.25"),
        ("2 \N{MULTIPLICATION SIGN} 3", 2, "write *"),
        ("cpu \N{MINUS SIGN} 1", 4, "write -"),
        ("'a'", 0, "is not part of a formula"),
        ("cpu\x00", 3, "U+0000 is not part of a formula"),
        ("\N{ARABIC-INDIC DIGIT TWO}", 0, "is not part of a formula"),
        ("1" * 31, 0, "a number has at most 30 digits"),
        ("1e31", 0, "an exponent is at most 30"),
        ("1e-99999999999999", 0, "an exponent is at most 30"),
        ("1" + "+1" * 100, MAX_CHARACTERS, "a formula has at most 200 characters, this one 201"),
        ("(" * 51 + "1" + ")" * 51, 50, "nested more than 50 levels deep"),
        ("-" * 60 + "1", 50, "nested more than 50 levels deep"),
    ],
)
def test_what_is_wrong_with_a_formula_is_said_with_its_place(formula: str, at: int, what: str) -> None:
    with pytest.raises(FormulaError) as raised:
        parse(formula, QUANTITIES)
    said, shown, caret = str(raised.value).split("\n")
    assert what in said
    assert raised.value.at == at
    assert said.endswith(f"(position {at + 1})")
    assert caret.index("^") == 4 + at
    assert shown.startswith("    ")
    assert len(shown) <= MAX_CHARACTERS + 10


def test_the_longest_and_the_deepest_formulas_are_read() -> None:
    assert bind(parse("1" + "+1" * 99 + " ", QUANTITIES), DECIMAL)({}) == 100
    deep = "(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH
    assert bind(parse(deep, QUANTITIES), DECIMAL)({}) == 1


@given(st.text(max_size=250) | st.text("0123456789.eE+-*/%() RunTimecpu_^,'\"\\\n", max_size=250))
@example("9" * 250)
@example("(" * 200)
@example("-" * 200)
def test_no_text_crashes_or_stalls_the_parser(text: str) -> None:
    for compat in Compatibility:
        wrong, none = None, None
        with bounded():
            try:
                assert rule(text, compat=compat).amount(ORACLE_JOB).is_finite()
            except FormulaError as error:
                wrong = error
            except NoResult as reason:
                none = reason
        assert wrong is None or (0 <= wrong.at <= len(text) and str(wrong).count("\n") == 2)
        assert none is None or 0 < len(str(none)) < 100


# Random formulas: a tree of ours, its text with random blanks and parentheses, and its value by another evaluator.
Tree = tuple[Any, ...]
_NAMES = ("NumNodes", "NumCPUs", "RunTime", "gres_gpu")
_NUMBERS = st.builds(lambda whole, part: f"{whole}.{part}" if part else str(whole), st.integers(0, 9999),
                     st.sampled_from(["", "5", "25", "125"]))  # fmt: skip
_LEAVES = st.tuples(st.just("number"), _NUMBERS) | st.tuples(st.just("name"), st.sampled_from(_NAMES))
_BLANKS = st.sampled_from(["", "", "", " ", "  "])


def _grown(signs: str) -> st.SearchStrategy[Tree]:
    return st.recursive(
        _LEAVES,
        lambda inner: (
            st.tuples(st.just("-"), inner)
            | st.tuples(st.sampled_from(list(signs)), inner, inner)
            | st.tuples(st.just("()"), inner)
        ),
        max_leaves=8,
    )


_RANK = {"+": 1, "-": 1, "%": 2, "*": 3, "/": 3}


def _text(tree: Tree, blank: Callable[[], str]) -> tuple[str, int]:
    """The text of a tree and its rank, with parentheses only where the precedence asks for them."""
    match tree:
        case ("number" | "name", text):
            return str(text), 5
        case ("()", inner):
            return f"({blank()}{_text(inner, blank)[0]}{blank()})", 5
        case ("-", inner):
            said, rank = _text(inner, blank)
            return f"-{blank()}{said if rank >= 4 else f'({said})'}", 4
        case (sign, left, right):
            mine = _RANK[sign]
            first, rank = _text(left, blank)
            first = first if rank >= mine else f"({first})"
            second, rank = _text(right, blank)
            second = second if rank > mine else f"({second})"
            return f"{first}{blank()}{sign}{blank()}{second}", mine
    raise AssertionError(tree)


def _reckon(tree: Tree, leaf: Callable[[str, str], Any], binary: dict[str, Callable[[Any, Any], Any]]) -> Any:
    match tree:
        case ("number" | "name" as kind, text):
            return leaf(kind, text)
        case ("()", inner):
            return _reckon(inner, leaf, binary)
        case ("-", inner):
            return -_reckon(inner, leaf, binary)
        case (sign, left, right):
            return binary[sign](_reckon(left, leaf, binary), _reckon(right, leaf, binary))
    raise AssertionError(tree)


_COUNTS = {"NumNodes": Fraction(2), "NumCPUs": Fraction(256), "RunTime": Fraction(21, 2), "gres_gpu": Fraction(8)}


@given(_grown("+-*/%"), st.data())
@settings(max_examples=examples(300))
def test_random_formulas_come_out_as_python_reckons_the_tree(tree: Tree, data: st.DataObject) -> None:
    text, _ = _text(tree, lambda: data.draw(_BLANKS))
    if len(text) > MAX_CHARACTERS:
        return
    with localcontext() as context:
        context.prec = DIGITS
        context.Emax, context.Emin = 999, -999

        def leaf(kind: str, said: str) -> Decimal:
            return Decimal(said) if kind == "number" else Decimal(str(float(_COUNTS[said])))

        signs = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod}
        try:
            expected: Decimal | None = _reckon(tree, leaf, signs)
        except ArithmeticError:
            expected = None
    single = rule(text)
    try:
        value = bind(single.formula.tree, DECIMAL)(single.values(ORACLE_JOB))
    except NoResult:
        assert expected is None
    else:
        assert value == expected


@given(_grown("+-*"), st.data())
@settings(max_examples=examples(200))
def test_without_division_random_formulas_are_exact_in_both_arithmetics(tree: Tree, data: st.DataObject) -> None:
    text, _ = _text(tree, lambda: data.draw(_BLANKS))
    if len(text) > MAX_CHARACTERS:
        return
    exact = _reckon(
        tree,
        lambda kind, said: Fraction(said) if kind == "number" else _COUNTS[said],
        {"+": operator.add, "-": operator.sub, "*": operator.mul},
    )
    single = rule(text)
    value = bind(single.formula.tree, DECIMAL)(single.values(ORACLE_JOB))
    if abs(exact) < 10**20:
        assert math.isclose(Fraction(value), exact, rel_tol=1e-12, abs_tol=1e-12)
    original, none = None, ""
    try:
        original = heappe(text).amount(ORACLE_JOB)
    except NoResult as reason:
        none = str(reason)
    if original is None:
        assert "32 bits" in none or "96 bits" in none or "too large" in none
    else:
        assert math.isclose(original, exact, rel_tol=1e-12)


def test_a_job_s_quantities_are_what_the_table_says() -> None:
    job = make_job(
        node_count=3, cpu_count=24, gpu_count=2, wall_s=5400, submitted_at=Epoch(7200), started_at=Epoch(10800),
        ended_at=Epoch(18000), quantities=(("NumTasks", 12), ("TimeLimit", 7200), ("EligibleTime", 3600),
        ("AccrueTime", 3600), ("SecsPreSuspend", 90), ("mem", 3 * 1024 * 1024), ("billing", 99), ("energy", 9)),
    )  # fmt: skip
    everything = rule("+".join(QUANTITIES))
    assert {name: str(value) for name, value in everything.values(job).items()} == {
        "NumNodes": "3", "NumCPUs": "24", "NumTasks": "12", "RunTime": "1.5", "TimeLimit": "2", "SubmitTime": "2",
        "StartTime": "3", "EndTime": "5", "EligibleTime": "1", "AccrueTime": "1", "SecsPreSuspend": "90",
        "cpu": "24", "mem": "3", "node": "3", "billing": "99", "energy": "9", "gres_gpu": "2",
    }  # fmt: skip
    assert {quantity.measure for quantity in QUANTITIES.values()} == set(QuantityKind)


def test_a_job_without_a_time_of_submission_has_none_in_a_formula() -> None:
    assert QUANTITIES["SubmitTime"].take(make_job(submitted_at=Epoch(0))) is None


@pytest.mark.parametrize(
    ("unit", "result"), [("seconds", "5400"), ("minutes", "90"), ("hours", "1.5"), ("days", "0.0625")]
)
def test_time_is_counted_in_the_configured_unit(unit: str, result: str) -> None:
    job = make_job(wall_s=5400, started_at=Epoch(ENDED - 5400))
    assert amount_text(rule("RunTime", time_unit=TimeUnit(unit)).amount(job)) == result
    assert amount_text(rule("EndTime - StartTime", time_unit=TimeUnit(unit)).amount(job)) == result
    assert amount_text(heappe("RunTime", time_unit=TimeUnit(unit)).amount(job)) == result


@pytest.mark.parametrize(
    ("formula", "overrides", "reason"),
    [
        ("gres_gpu * RunTime", {}, "gres_gpu is not known"),
        ("TimeLimit", {}, "TimeLimit is not known"),
        ("energy", {"wall_s": 60, "quantities": (("energy", 10**12),)}, "energy is not known"),
        ("1 / (NumNodes - 1)", {}, "division by zero"),
        ("RunTime % (NumNodes - 1)", {}, "division by zero"),
        ("1 - RunTime", {"wall_s": 7200}, "the result is negative"),
        ("1e30*1e30", {}, "the result is too large"),
        ("*".join(["9e30"] * 40), {}, "the result is too large"),
        ("1e30 % 1e-30", {}, "the result is too large"),
    ],
)
def test_without_a_result_there_is_no_charge_and_a_reason(formula: str, overrides: dict[str, Any], reason: str) -> None:
    job = make_job(**overrides)
    found = Charges(rules=(rule(formula),)).assess(job)
    assert found is not None
    assert found.charge is None
    assert found.reason == reason
    zero = Charges(rules=(rule(formula, on_error=OnError.ZERO),)).assess(job)
    assert zero is not None
    assert zero.charge is not None
    assert (zero.charge.text, zero.reason) == ("0", reason)


def test_negative_results_pass_in_the_original_only() -> None:
    assert amount_text(heappe("1 - 3").amount(ORACLE_JOB)) == "-2"
    assert amount_text(rule("1 - 1").amount(ORACLE_JOB)) == "0"
    assert amount_text(heappe("-0.0").amount(ORACLE_JOB)) == "0"


@pytest.mark.parametrize(
    ("rounding", "places", "results"),
    [
        ("half-up", 2, ("0.13", "0.17", "2")),
        ("half-even", 2, ("0.12", "0.17", "2")),
        ("up", 2, ("0.13", "0.17", "2")),
        ("down", 2, ("0.12", "0.16", "2")),
        ("half-up", 0, ("0", "0", "2")),
        ("up", 0, ("1", "1", "2")),
        ("half-up", None, ("0.125", "0.1666666666666666666666666666666667", "2")),
    ],
)
def test_amounts_are_rounded_as_configured(rounding: str, places: int | None, results: tuple[str, ...]) -> None:
    made = [
        amount_text(rule(formula, rounding=Rounding(rounding), places=places).amount(ORACLE_JOB))
        for formula in ("1/8", "1/6", "2")
    ]
    assert tuple(made) == results


def window(start: int | None, end: int | None) -> Window:
    return Window(start=None if start is None else Epoch(start), end=None if end is None else Epoch(end))


def test_the_rule_is_chosen_by_the_start_of_the_job_and_the_latest_counts() -> None:
    began = ENDED - 7200
    rules = {
        "open": rule("1", valid=window(None, None)),
        "old": rule("2", valid=window(0, began)),
        "now": rule("3", valid=window(began, began + 1)),
        "same": rule("4", valid=window(began, None)),
        "other": rule("5", valid=window(began, None), queues=("gpu*",)),
    }
    charges = Charges(rules=tuple(rules.values()))

    def chosen(**job: Any) -> ChargeRule | None:
        return charges.rule_for(make_job(**job))

    assert chosen(started_at=Epoch(began)) is rules["same"]
    assert chosen(started_at=Epoch(began - 1)) is rules["old"]
    assert chosen(started_at=Epoch(-1)) is rules["open"]
    assert chosen(started_at=None, wall_s=7200) is rules["same"]
    assert chosen(started_at=None, wall_s=7201) is rules["old"]
    assert chosen(queue="gpu-large", started_at=Epoch(began)) is rules["other"]
    assert Charges(rules=(rules["old"],)).assess(make_job(started_at=Epoch(began))) is None
    assert Charges().of(make_job()) is None


def test_rules_are_for_queues_and_groups_by_pattern() -> None:
    one = rule("1", queues=("grid", "gpu-*"), groups=("atlas",))
    charges = Charges(rules=(one,))
    assert charges.rule_for(make_job()) is one
    assert charges.rule_for(make_job(queue="gpu-7")) is one
    assert charges.rule_for(make_job(queue="Grid")) is None
    assert charges.rule_for(make_job(local_group="cms")) is None


def test_overlapping_rules_are_told_the_one_that_counts_second() -> None:
    early = rule("1", queues=("a", "b"), valid=window(0, 100))
    late = rule("2", queues=("b",), valid=window(50, None))
    apart = rule("3", queues=("b",), valid=window(100, None), groups=("cms",))
    wild = rule("4", queues=("c*",), valid=window(None, 10))
    assert list(overlaps([late, early, apart, wild])) == [(early, late), (late, apart)]
    assert list(overlaps([rule("1"), wild])) != []


NAMES = ["".join(letters) for length in range(6) for letters in product("ab!", repeat=length)]


@given(*[st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]"]), min_size=1, max_size=3).map("".join)] * 2)
def test_two_patterns_meet_when_some_name_matches_both(one: str, other: str) -> None:
    there = any(fnmatchcase(name, one) and fnmatchcase(name, other) for name in NAMES)
    met = list(overlaps([rule("1", queues=(one,)), rule("2", queues=(other,))])) != []
    assert met == there or (met and "[" in one and "[" in other)  # two sets are not compared


def test_patterns_of_many_stars_are_compared_in_reasonable_time() -> None:
    with bounded():
        assert list(overlaps([rule("1", queues=("*a" * 250 + "b",)), rule("2", queues=("*a" * 250 + "c",))])) == []


def test_a_charge_says_what_it_came_from() -> None:
    charge = Charges(rules=(rule("cpu * RunTime", description="2026"),)).of(make_job(cpu_count=2, wall_s=5400))
    assert charge is not None
    assert (charge.text, charge.tariff.unit, charge.tariff.formula, charge.tariff.description) == (
        "3", "CPUh", "cpu * RunTime", "2026",
    )  # fmt: skip
