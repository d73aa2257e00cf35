"""What an evaluation asks of a trained model beside its rankings: a file for each question, found by its name.

A question is a module with

    asks(evaluation) -> bool            whether it can be asked of this model, and whether it is to be
    answer(evaluation, split) -> None   writes its files into `evaluation.folder`
    SHOWN                               the tables of these files, for the terminal and the report

where `split` has the scores that were ranked.
"""
