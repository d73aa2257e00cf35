"""Visual features: the HDF5 store, importers of published feature files and one file per extractor."""
