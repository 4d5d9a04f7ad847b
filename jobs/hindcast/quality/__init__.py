"""Gates: Great Expectations on a change before it is published, and the rows that are held back.

| to change | look in |
| --- | --- |
| how a gate's result becomes passed or failed | gate_evaluation.py |
| a rule that only Hindcast has | own_rules/ |
| how a rule of Great Expectations compares | its package; what we replace of it: regex_gates.py, json_schemas.py |
| which rows a gate sees | staged_change.py; the row set of each gate: expectations.py |
| what becomes of the rows that fail | quarantine_gates.py, and with `hold: row` held_records.py |
| how a gate reads in words | gate_words.py |
"""
