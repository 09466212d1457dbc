"""Rules as data: their general forms, matching and application, and the library on disk with its
certificates."""
