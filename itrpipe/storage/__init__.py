"""Folders of finished work: what they hold, how they are written whole, locked, checked and found again."""
