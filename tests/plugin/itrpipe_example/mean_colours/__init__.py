"""Mean colours of the cells of a grid."""
