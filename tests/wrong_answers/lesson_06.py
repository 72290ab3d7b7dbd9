"""Wrong answers to lesson 06: what a learner changed in the solution, and what check must say."""

WRONG = {}
