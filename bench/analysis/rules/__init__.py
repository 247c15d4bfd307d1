"""Rules that explain a comparison, each with its condition and its public source."""

from bench.analysis.rules import memory, time, traffic
from bench.analysis.rules.rule import Rule

RULES: tuple[Rule, ...] = (*time.RULES, *memory.RULES, *traffic.RULES)
