"""Mail that tries to steer a model that reads it, of many kinds and in several languages; all of it made up."""

from __future__ import annotations

from tests.support.injections.courtesies import COURTESIES
from tests.support.injections.disguises import DISGUISES
from tests.support.injections.fresh import FRESH, SECURITY
from tests.support.injections.letter import Injection
from tests.support.injections.orders import ORDERS
from tests.support.injections.places import PLACES
from tests.support.injections.pretences import PRETENCES

CORPUS: tuple[Injection, ...] = (*ORDERS, *DISGUISES, *PRETENCES, *PLACES, *COURTESIES, *FRESH)

__all__ = ["CORPUS", "FRESH", "SECURITY", "Injection"]
