"""Random modules as people write them, with scripts that call them: a seed is a program, which reads as Python.

``vocabulary`` is what they are made of, ``writer`` makes the text, ``running`` compares an optimized module with a
plain one.
"""
