"""The journey of a record, and the operations made of it."""
