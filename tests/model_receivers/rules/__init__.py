"""Each rule of the core, sentence by sentence, by what a receiver holds in the end; expected numbers are written by hand."""
