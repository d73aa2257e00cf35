"""Captions whose words and phrases are coloured by their scores with an image. The text of a caption stays as it is,
so nothing may stand between its pieces."""
