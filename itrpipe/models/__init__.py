"""Backbones, one file each: the file stem is the name a configuration uses, `base` holds their common contract."""
