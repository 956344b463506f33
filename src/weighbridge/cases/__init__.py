"""The catalogue of failure mechanisms: entries, the programs made from them, and what was observed when they ran.

One entry is one mechanism: a contract, a program that breaks it, a fix that looks right and is not, and the repair.
Nothing an entry says about its programs is believed; each is run again, confined, and what is shown is what was seen.
No program of the catalogue imports weighbridge: it must run anywhere, and share nothing with what checks it.
"""
