"""Wrong answers to lesson 05: what a learner changed in the solution, and what check must say."""

WRONG = {}
