"""Sections of the page: a folder each, with `section.py` and a template of the folder's name.

A `section.py` has

    TITLE: str              what the list of sections at the top calls it
    ORDER: int              its place on the page, from the lowest on
    READS: tuple[str, ...]  files that it reads itself; metrics, rankings and histories come with the runs
    view(source) -> Any     what its template shows as `view`; None leaves the section out

The template also sees the whole `report` and the module itself as `section`.
"""
