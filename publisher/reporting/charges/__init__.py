"""Charges: formulas over what a job used, and which of them is a job's.

A formula is text from the configuration. `formula.py` parses and evaluates it, `heappe.py`
evaluates it as HEAppE does, `rules.py` defines its names, chooses a formula by place and time, and
rounds. Python never evaluates the text; its length, nesting and numbers are limited, so that
neither a slip of the keyboard nor malice can stall or crash the parser.
"""
