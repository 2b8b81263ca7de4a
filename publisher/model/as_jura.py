"""What jura-ng says of a site's jobs, as far as receivers key them: which jobs, and under which names.

Nothing of what jura-ng sent stays on its machine but a time for each target, so what it left at a receiver is worked out anew
from the same accounting data. Measured on jura-ng of ARC 6.21 against APEL's server code (arc-publisher facts, 5, 6 and 9.4).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from publisher.model.benchmark import BenchmarkPolicy, BenchmarkRule, make_benchmark
from publisher.model.identity import Identity
from publisher.model.policy import KeyStyle, RecordPolicy
from publisher.model.selection import Selection, Window

# What it says of a job that carries no benchmark.
_WITHOUT: Final = BenchmarkPolicy(rules=(BenchmarkRule(benchmarks=(make_benchmark("HEPSPEC", "1.0"),)),))


def as_jura(policy: RecordPolicy, *, summary: bool) -> RecordPolicy:
    """The policy of jura-ng at this site. `vomsless_vo` (records.default_vo) counts in its single records only."""
    return replace(
        policy,
        infrastructure="grid",
        benchmarks=_WITHOUT,
        default_vo="" if summary else policy.default_vo,
        vo_rules=(),
        vo_groups=(),
        identity=Identity(),
        key_style=KeyStyle.JURA,
        machine_name="",
        batch_server="",
        _who={},
        _where={},
    )


def jura_selection(selection: Selection, window: Window) -> Selection:
    """The jobs that it sends of a window; it knows no VOs to leave out."""
    return replace(selection, statuses=frozenset({"completed", "failed"}), window=window, exclude_vos=frozenset())
