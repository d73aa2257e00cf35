"""Questions that an evaluation asks of a trained model beside its rankings: a file for each, found by its name.

A question is a module with

    answer(evaluation, split)    its figures, ready for JSON; None where it cannot, or is not to, be asked of this model
    SHOWN                        tables of these figures, for the terminal and the report, and the file that keeps them

where `split` has the scores that were ranked.
"""
