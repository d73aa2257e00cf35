"""How many negative sentences score below the captions that they were made of, by what wrote them."""
