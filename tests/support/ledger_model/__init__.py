"""A second, independent ledger in plain Python: the oracle of the state machine, and fast enough for simulations."""

from tests.support.ledger_model.ledger import LedgerModel

__all__ = ["LedgerModel"]
