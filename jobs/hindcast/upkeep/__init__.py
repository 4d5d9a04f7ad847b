"""The care of tables that live for years.

retention   trims what `keep` in the contract says need not be kept
trimmed     what the ledger knows of records that were trimmed
"""
