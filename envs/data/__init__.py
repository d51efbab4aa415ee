"""Reads tasks from files."""
