"""Decides about mail: rules, then a model, then whether a person has to agree."""
