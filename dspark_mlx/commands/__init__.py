"""Commands that are small enough to live in the library's own tree."""
