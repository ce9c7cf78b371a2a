"""Removes mail at its source once the archive provably holds it: off by default, below the watermark, with proof."""
