"""The study of a sweep: its rounds in a database, which process may change them, and what drives them."""
