"""Wrong answers to lesson 00: what a learner changed in the solution, and what check must say."""

WRONG = {}
