"""What can be observed of `publisher` from outside, written down so that two states of the code can be compared."""
