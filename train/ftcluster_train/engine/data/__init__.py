"""Convert raw data to token samples on disk, and choose the order of the samples."""
