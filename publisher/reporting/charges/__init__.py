"""Charges: formulas over what a job used, and which of them is a job's.

A formula is text from the configuration. `formula.py` cuts it and makes a tree of it, `arithmetic.py` and
`heappe.py` are two ways to reckon with it, `quantities.py` says what its names stand for, `rules.py` chooses by place and
time and rounds. Nothing is ever handed to Python to evaluate; length, nesting and the size of numbers are limited, so that
neither a slip of the keyboard nor malice can stall or crash what reads it.
"""
