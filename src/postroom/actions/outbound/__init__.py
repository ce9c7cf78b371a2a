"""Mail in the owner's name: replies and forwards, each sent exactly once or left for a person to look at."""
