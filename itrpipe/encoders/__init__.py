"""Any pretrained encoder of images or captions, kept as the folder that it came in."""
