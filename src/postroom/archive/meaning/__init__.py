"""Mail by its meaning: vectors of messages, made in the background, and rankings made of them. The extra `meaning`.

Vectors are made of the archive and can be made again at any time; nothing else depends on them.
"""
