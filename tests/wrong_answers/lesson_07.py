"""Wrong answers to lesson 07: what a learner changed in the solution, and what check must say."""

WRONG = {}
