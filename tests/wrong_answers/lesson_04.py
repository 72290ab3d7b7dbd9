"""Wrong answers to lesson 04: what a learner changed in the solution, and what check must say."""

WRONG = {}
