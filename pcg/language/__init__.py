"""The index language: equations as text, expressions and polynomials, in normal form."""
