"""Substitutions: rules as data, their matching, application, generation and storage."""
