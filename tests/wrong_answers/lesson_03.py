"""Wrong answers to lesson 03: what a learner changed in the solution, and what check must say."""

WRONG = {}
