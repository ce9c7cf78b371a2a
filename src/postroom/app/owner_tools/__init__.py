"""Tools of rooms that do not know the Switchboard, a module for each area: `rule_tools.py` has those of rules."""
